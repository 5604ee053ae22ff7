//! A small configuration written by hand, with parts drawn from a seed.

use crate::random::Random;

/// A configuration as text, in blocks that can be left out.
#[derive(Clone, Debug)]
pub(crate) struct Sample {
    http: Vec<String>,
    server: Vec<String>,
    log_format: String,
    port: u16,
}

const HTTP: &[&str] = &[
    "gzip on;",
    "gzip_vary on;",
    "sendfile on;",
    "etag off;",
    "server_tokens off;",
    "keepalive_requests 3;",
    "types { text/html html; text/plain txt; text/css css; }",
    "ssi on;",
    "msie_padding off;",
    "expires 1h;",
    "add_header X-Test $uri;",
    "charset utf-8;",
];
const SERVER: &[&str] = &[
    "location /dir/ { autoindex on; }",
    "location /a { return 302 /b; }",
    "location = /plain.txt { expires max; add_header Cache-Control x always; }",
    "location /api/ { proxy_pass http://@UP@; }",
    "location /app/ { proxy_pass http://@UP@/base/; proxy_buffering off; }",
    "location ~ \\.php$ { proxy_pass http://@UP@; proxy_intercept_errors on; }",
    "error_page 404 /404.html;",
    "error_page 500 502 503 504 /50x.html;",
    "rewrite ^/old/(.*)$ /$1 redirect;",
    "location /static/ { alias @PREFIX@/html/dir/; }",
    "try_files $uri $uri/ /page.html;",
    "location /upload/ { dav_methods PUT DELETE MKCOL COPY MOVE; create_full_put_path on; }",
    "client_max_body_size 5k;",
    "location /noindex { autoindex on; autoindex_format json; }",
    "location /closed { deny all; }",
    "gzip_static on;",
    "if ($request_method = POST) { return 405; }",
    "location /b { return 200 \"text $args\"; }",
    "location /ssi { ssi on; }",
];

impl Sample {
    pub(crate) fn random(
        random: &mut Random,
        prefix: &str,
        ports: &[u16],
        upstream: &str,
        log_format: &str,
    ) -> Sample {
        let draw = |random: &mut Random, lines: &[&str], percent: usize| -> Vec<String> {
            let drawn = lines.iter().filter(|_| random.chance(percent));
            drawn
                .map(|line| line.replace("@UP@", upstream).replace("@PREFIX@", prefix))
                .collect()
        };
        Sample {
            http: draw(random, HTTP, 30),
            server: draw(random, SERVER, 50),
            log_format: String::from(log_format),
            port: ports[0],
        }
    }

    pub(crate) fn text(&self, engine: Option<&str>) -> String {
        let engine = engine.map_or(String::new(), |engine| format!("use {engine}; "));
        let mut text = format!(
            "error_log logs/error.log info;\nevents {{ {engine}worker_connections 256; }}\nhttp {{\n"
        );
        text.push_str(&format!(
            "    log_format all {};\n    access_log logs/access.log all;\n",
            self.log_format
        ));
        text.push_str("    client_body_temp_path temp/body;\n    proxy_temp_path temp/proxy;\n");
        for line in &self.http {
            text.push_str(&format!("    {line}\n"));
        }
        text.push_str(&format!(
            "    server {{\n        listen 127.0.0.1:{};\n        root html;\n",
            self.port
        ));
        for line in &self.server {
            text.push_str(&format!("        {line}\n"));
        }
        text.push_str("    }\n}\n");
        text
    }

    pub(crate) fn smaller(&self) -> Vec<Sample> {
        let mut all = Vec::new();
        for index in 0..self.http.len() {
            let mut less = self.clone();
            less.http.remove(index);
            all.push(less);
        }
        for index in 0..self.server.len() {
            let mut less = self.clone();
            less.server.remove(index);
            all.push(less);
        }
        all
    }

    pub(crate) fn targets(&self) -> Vec<String> {
        [
            "/api/x",
            "/app/y?z=1",
            "/x.php",
            "/a",
            "/b",
            "/dir/",
            "/static/a.txt",
            "/upload/new.txt",
            "/upload/old.txt",
            "/noindex/",
        ]
        .map(String::from)
        .to_vec()
    }

    pub(crate) fn hosts(&self) -> Vec<String> {
        vec![String::from("127.0.0.1"), String::from("one.example")]
    }
}
