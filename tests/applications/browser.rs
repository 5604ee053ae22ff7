//! Chromium without a screen, steered by the DevTools protocol over a pipe: JSON, each message
//! ended by a zero byte. <https://chromedevtools.github.io/devtools-protocol/>
//!
//! A page is used by what stands on it: fields are filled, buttons pressed, and what must be seen
//! next is waited for.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, ChildStdout, Command};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::process::{PATIENCE, Process};

/// How long one command may take.
const TIME_FOR_A_COMMAND: Duration = Duration::from_secs(60);

/// How long a field may take to hold what has been typed.
const TIME_FOR_A_FIELD: Duration = Duration::from_secs(2);

/// How long to wait before a page is looked at again.
const PAUSE: Duration = Duration::from_millis(50);

/// A browser with one page.
pub(crate) struct Browser {
    process: Process,
    input: ChildStdin,
    messages: Receiver<Value>,
    session: String,
    commands: u64,
    /// What went wrong on pages: scripts that failed, and whatever came with a status from 400 or
    /// not at all.
    faults: Vec<String>,
    host: String,
    /// What is asked of the site, by the browser's name for the request.
    requests: HashMap<String, String>,
}

impl Browser {
    /// Starts it with its profile in `folder`, for the site of this name, which is at a port of
    /// 127.0.0.1; there are no others.
    pub(crate) fn start(folder: &Path, host: &str, port: u16) -> Browser {
        let profile = folder.join("chromium");
        std::fs::create_dir_all(&profile).unwrap();
        // It reads commands from descriptor 3 and writes to descriptor 4.
        let mut command = Command::new("sh");
        command.args(["-c", "exec chromium \"$@\" 3<&0 4>&1 </dev/null >&2", "sh"]);
        command.args([
            "--headless=new",
            "--remote-debugging-pipe",
            "--no-sandbox",
            "--disable-gpu",
            "--no-proxy-server",
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--window-size=1280,1200",
        ]);
        command.arg(format!(
            "--host-resolver-rules=MAP {host} 127.0.0.1:{port}, MAP * ~NOTFOUND"
        ));
        command.arg(format!("--user-data-dir={}", profile.display()));
        command.env("HOME", &profile);
        let (process, input, output) = Process::start_with_pipes(&mut command, "browser", folder);
        let mut browser = Browser {
            process,
            input,
            messages: read_messages(output),
            session: String::new(),
            commands: 0,
            faults: Vec::new(),
            host: format!("http://{host}/"),
            requests: HashMap::new(),
        };
        let target = browser.command("Target.createTarget", json!({"url": "about:blank"}));
        let attach = json!({"targetId": target["targetId"], "flatten": true});
        let attached = browser.command("Target.attachToTarget", attach);
        browser.session = attached["sessionId"].as_str().unwrap().to_owned();
        for domain in ["Page", "Runtime", "Network", "DOM"] {
            browser.command(&format!("{domain}.enable"), json!({}));
        }
        browser
    }

    /// Opens a page and waits until all of it is there.
    pub(crate) fn open(&mut self, url: &str) {
        let opened = self.command("Page.navigate", json!({"url": url}));
        let failed = opened.get("errorText");
        assert!(failed.is_none(), "{url}: {failed:?}");
        self.wait("document.readyState == 'complete' && location.href != 'about:blank'");
    }

    /// Writes into fields in place of what they hold. A page's script may move the cursor
    /// meanwhile: what has gone elsewhere is written again, until all fields hold their texts.
    pub(crate) fn fill(&mut self, fields: &[(&str, &str)]) {
        let begun = Instant::now();
        for (field, _) in fields {
            self.wait(&format!("document.querySelector({field:?})"));
        }
        while let Some((field, text)) = fields.iter().find(|one| !self.is_filled(one)) {
            assert!(begun.elapsed() < PATIENCE, "{field} does not take {text:?}");
            self.evaluate(&format!(
                "(field => {{ field.scrollIntoView(); field.focus(); if (field.select) field.select(); else getSelection().selectAllChildren(field); }})(document.querySelector({field:?}))"
            ));
            self.write(text);
            let written = Instant::now();
            while !self.is_filled(&(field, text)) && written.elapsed() < TIME_FOR_A_FIELD {
                std::thread::sleep(PAUSE);
            }
        }
    }

    fn is_filled(&mut self, (field, text): &(&str, &str)) -> bool {
        let holds = format!(
            "(field => (field.value ?? field.textContent) == {text:?})(document.querySelector({field:?}))"
        );
        self.evaluate(&holds) == Value::Bool(true)
    }

    /// Types a text where the cursor is.
    pub(crate) fn write(&mut self, text: &str) {
        self.command("Input.insertText", json!({"text": text}));
    }

    /// Presses the Enter key.
    pub(crate) fn press_enter(&mut self) {
        for kind in ["keyDown", "keyUp"] {
            let key = json!({"type": kind, "key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 13, "text": "\r"});
            self.command("Input.dispatchKeyEvent", key);
        }
    }

    /// Presses a button, once it is there.
    pub(crate) fn press(&mut self, button: &str) {
        self.wait(&format!(
            "(button => button && !button.disabled && button.getAttribute('aria-disabled') != 'true')(document.querySelector({button:?}))"
        ));
        self.evaluate(&format!("document.querySelector({button:?}).click()"));
    }

    /// Presses what leads to another page, and waits until that is there.
    pub(crate) fn press_and_leave(&mut self, button: &str) {
        self.evaluate("window.is_left = false");
        self.press(button);
        self.wait("window.is_left === undefined && document.readyState == 'complete'");
    }

    /// Chooses a file for a field.
    pub(crate) fn choose_file(&mut self, field: &str, file: &Path) {
        self.wait(&format!("document.querySelector({field:?})"));
        let node = self.command(
            "Runtime.evaluate",
            json!({"expression": format!("document.querySelector({field:?})")}),
        );
        let object = &node["result"]["objectId"];
        self.command(
            "DOM.setFileInputFiles",
            json!({"files": [file], "objectId": object}),
        );
    }

    /// Waits until an expression is true; a page that is on its way is waited for.
    pub(crate) fn wait(&mut self, expression: &str) {
        let begun = Instant::now();
        loop {
            let value = self.try_evaluate(&format!("!!({expression})"));
            if value == Ok(Value::Bool(true)) {
                return;
            }
            if begun.elapsed() > PATIENCE {
                let shown = self.try_evaluate("location.href + '\\n' + document.body.innerText");
                self.screenshot("failed");
                panic!(
                    "awaited {expression}, which is {value:?}; faults: {:?}; the page:\n{}\nthe browser said:\n{}",
                    self.faults,
                    shown.map_or_else(
                        |error| error,
                        |text| text.as_str().unwrap_or_default().to_owned()
                    ),
                    self.process.log()
                );
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Waits until a text is seen on the page.
    pub(crate) fn wait_for_text(&mut self, text: &str) {
        self.wait(&format!("document.body.innerText.includes({text:?})"));
    }

    /// What an expression, or the promise that it is, comes to.
    pub(crate) fn evaluate(&mut self, expression: &str) -> Value {
        self.try_evaluate(expression)
            .unwrap_or_else(|error| panic!("{expression}: {error}"))
    }

    /// Has the page be so wide and high, for people who like it so: `light` or `dark`.
    pub(crate) fn show_as(&mut self, (width, height): (u32, u32), scheme: &str) {
        let size =
            json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false});
        self.command("Emulation.setDeviceMetricsOverride", size);
        let features = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
        self.command("Emulation.setEmulatedMedia", features);
    }

    /// Keeps a picture of the page, where TIDEGATE_SCREENSHOTS names a folder.
    pub(crate) fn screenshot(&mut self, name: &str) {
        let Some(folder) = std::env::var_os("TIDEGATE_SCREENSHOTS").map(PathBuf::from) else {
            return;
        };
        let taken = self.command("Page.captureScreenshot", json!({"format": "png"}));
        let mut decode = Command::new("base64");
        let file = std::fs::File::create(folder.join(format!("{name}.png"))).unwrap();
        let mut decode = decode
            .arg("-d")
            .stdin(std::process::Stdio::piped())
            .stdout(file)
            .spawn()
            .unwrap();
        let text = taken["data"].as_str().unwrap().as_bytes();
        decode.stdin.take().unwrap().write_all(text).unwrap();
        decode.wait().unwrap();
    }

    /// What went wrong on pages since the last call.
    pub(crate) fn take_faults(&mut self) -> Vec<String> {
        // An answer comes after the events before it.
        self.evaluate("0");
        std::mem::take(&mut self.faults)
    }

    fn try_evaluate(&mut self, expression: &str) -> Result<Value, String> {
        let parameters =
            json!({"expression": expression, "awaitPromise": true, "returnByValue": true});
        let answer = self.try_command("Runtime.evaluate", parameters)?;
        match answer.get("exceptionDetails") {
            Some(details) => Err(details.to_string()),
            None => Ok(answer["result"]["value"].clone()),
        }
    }

    fn command(&mut self, method: &str, parameters: Value) -> Value {
        self.try_command(method, parameters)
            .unwrap_or_else(|error| panic!("{method}: {error}"))
    }

    fn try_command(&mut self, method: &str, parameters: Value) -> Result<Value, String> {
        self.commands += 1;
        let mut message = json!({"id": self.commands, "method": method, "params": parameters});
        if !self.session.is_empty() {
            message["sessionId"] = json!(self.session);
        }
        let mut bytes = message.to_string().into_bytes();
        bytes.push(0);
        self.input.write_all(&bytes).unwrap_or_else(|error| {
            panic!(
                "the browser has gone: {error}; it said:\n{}",
                self.process.log()
            )
        });
        loop {
            let message = self.messages.recv_timeout(TIME_FOR_A_COMMAND);
            let mut message = message.unwrap_or_else(|error| {
                panic!(
                    "{method} has no answer ({error}); the browser said:\n{}",
                    self.process.log()
                )
            });
            if message["id"] == json!(self.commands) {
                return match message.get("error") {
                    Some(error) => Err(error.to_string()),
                    None => Ok(message["result"].take()),
                };
            }
            self.note(&message);
        }
    }

    fn note(&mut self, event: &Value) {
        let parameters = &event["params"];
        let fault = match event["method"].as_str() {
            Some("Runtime.exceptionThrown") => {
                let details = &parameters["exceptionDetails"];
                format!("a script failed: {details}")
            }
            Some("Network.responseReceived") => {
                let response = &parameters["response"];
                let status = response["status"].as_u64().unwrap_or_default();
                let url = response["url"].as_str().unwrap_or_default();
                // The browser asks for a picture of the site by itself.
                if status < 400 || !url.starts_with(&self.host) || url.ends_with("/favicon.ico") {
                    return;
                }
                format!("{status} for {url}")
            }
            Some("Network.requestWillBeSent") => {
                let url = parameters["request"]["url"].as_str().unwrap_or_default();
                if url.starts_with(&self.host) {
                    let name = parameters["requestId"].to_string();
                    self.requests.insert(name, url.to_owned());
                }
                return;
            }
            Some("Network.loadingFailed") if parameters["canceled"] != json!(true) => {
                let Some(url) = self.requests.get(&parameters["requestId"].to_string()) else {
                    return;
                };
                format!("{url} did not come: {}", parameters["errorText"])
            }
            // What asks whether to leave a page is told to.
            Some("Page.javascriptDialogOpening") => {
                let accept = json!({"id": 0, "sessionId": self.session, "method": "Page.handleJavaScriptDialog", "params": {"accept": true}});
                let _ = self.input.write_all(format!("{accept}\0").as_bytes());
                return;
            }
            _ => return,
        };
        self.faults.push(fault);
    }
}

/// Reads the browser's messages on a thread of its own, which ends with the browser.
fn read_messages(output: ChildStdout) -> Receiver<Value> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        for message in BufReader::new(output).split(0).map_while(Result::ok) {
            let message = serde_json::from_slice(&message).unwrap_or(Value::Null);
            if sender.send(message).is_err() {
                return;
            }
        }
    });
    receiver
}
