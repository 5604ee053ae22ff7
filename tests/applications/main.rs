//! Applications as people run them, behind their documentation's configuration: WordPress and
//! DokuWiki under php-fpm, used by Chromium from their installer to a page with a picture; Django
//! under uWSGI and Sinatra under Puma.
//!
//! The configurations are those of docs/php.md and docs/application-servers.md; only names of
//! files, names of sockets and the port are this test's. The very file that Tidegate has served by
//! is then given to nginx, and both must answer a walk over the site alike. All programs are
//! Debian's (tests/install-packages); they run in folders of their own, below /tmp, and listen on
//! Unix sockets.
//!
//! `TIDEGATE_SCREENSHOTS` names a folder that keeps pictures of what the browser has shown.

mod browser;
mod dashboard;
mod django;
mod dokuwiki;
mod mariadb;
mod picture;
mod process;
mod serve_php;
mod sinatra;
mod site;
mod walk;
mod wordpress;
