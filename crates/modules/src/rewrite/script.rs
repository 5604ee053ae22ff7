//! Interprets the compiled scripts of the two rewrite phases.

use std::ops::ControlFlow;
use std::sync::Arc;

use conf::Position;
use http::module::Script;
use http::request::{Part, Request, Step, Text};
use http::response::source::Body;
use proto::uri::{Escape, Unescape, escape, unescape};
use variables::Context as _;

use super::condition::matches;
use super::{Flag, Instruction, Return, Rewrite, Steps};

impl Script for Steps {
    /// Returns `Relocate` if the URI was rewritten and its location must be looked up. After a
    /// server's script the lookup follows in any case.
    fn run(&self, request: &mut Request) -> Step {
        let mut run = Run {
            request,
            log: self.log,
            escape_captures: true,
            uri_changed: false,
        };
        match run.steps(&self.steps) {
            ControlFlow::Break(Some(step)) => step,
            _ if run.uri_changed => Step::Relocate,
            _ => Step::Next,
        }
    }
}

/// One run of a script.
struct Run<'a> {
    request: &'a mut Request,
    /// `rewrite_log` of the scope that the script began in.
    log: bool,
    /// Whether captures in values are escaped if the client's URI was escaped. Set until the first
    /// `rewrite` has matched: nginx behaves so, and sites depend on it.
    escape_captures: bool,
    /// Whether the URI was rewritten, so that its location must be looked up.
    uri_changed: bool,
}

/// Continues with the next instruction, ends the script (`None`), or ends the phase with a step.
type Flow = ControlFlow<Option<Step>>;

impl Run<'_> {
    fn steps(&mut self, steps: &[Instruction]) -> Flow {
        steps.iter().try_for_each(|step| self.step(step))
    }

    fn step(&mut self, step: &Instruction) -> Flow {
        match step {
            Instruction::Set { target, value } => {
                let mut text = self.request.scratch().take_buffer();
                append_value(value, self.request, self.escape_captures, &mut text);
                target.assign(self.request, &text);
                self.request.scratch().give_buffer(text);
                Flow::Continue(())
            }
            Instruction::If {
                position,
                condition,
                plan,
                body,
            } => {
                let holds = condition.holds(self.request, self.escape_captures, self.log);
                let Ok(holds) = holds else {
                    return self.undecided(*position);
                };
                self.request.trace(*position, || {
                    if holds {
                        "the condition holds".to_owned()
                    } else {
                        "the condition does not hold".to_owned()
                    }
                });
                if !holds {
                    return Flow::Continue(());
                }
                if let Some(plan) = plan {
                    self.request.note_left_location();
                    self.request.plan = Arc::clone(plan);
                }
                self.steps(body)
            }
            Instruction::Rewrite(rewrite) => self.rewrite(rewrite),
            Instruction::Return(compiled) => Flow::Break(Some(self.run_return(compiled))),
            Instruction::Break(position) => {
                let text = || "the script ends here".to_owned();
                self.request.trace(*position, text);
                if self.uri_changed {
                    self.request.uri_state.valid_location = false;
                    self.uri_changed = false;
                }
                Flow::Break(None)
            }
        }
    }

    fn rewrite(&mut self, rewrite: &Rewrite) -> Flow {
        // Log lines of a subrequest name its URI, so the URI must stay in place while the regex
        // runs.
        let uri = match self.request.nesting.depth {
            0 => std::mem::take(&mut self.request.uri),
            _ => self.request.uri.clone(),
        };
        let matched = matches(self.request, &rewrite.regex, &uri, self.log);
        self.request.uri = uri;
        let Ok(matched) = matched else {
            return self.undecided(rewrite.position);
        };
        if !matched {
            let text = || "does not match".to_owned();
            self.request.trace(rewrite.position, text);
            return Flow::Continue(());
        }
        self.escape_captures = false;
        self.request.routing.internal = true;
        self.request.uri_state.unchanged = false;
        if rewrite.flag == Flag::Break {
            self.request.uri_state.valid_location = false;
            self.uri_changed = false;
        } else {
            self.uri_changed = true;
        }
        if let Flag::Redirect(status) = rewrite.flag {
            self.redirect(rewrite);
            return Flow::Break(Some(Step::Finish(status)));
        }
        self.change_uri(rewrite);
        if self.request.uri.is_empty() {
            logs::error!(self.request, Error, "the rewritten URI has a zero length");
            return Flow::Break(Some(Step::Finish(500)));
        }
        match rewrite.flag {
            Flag::None => Flow::Continue(()),
            _ => Flow::Break(None),
        }
    }

    /// Ends the phase with status 500: a regex hit a limit or failed, so it is not known whether it
    /// matches.
    fn undecided(&mut self, position: Position) -> Flow {
        let text = || "could not be decided".to_owned();
        self.request.trace(position, text);
        Flow::Break(Some(Step::Finish(500)))
    }

    /// Sets the `Location` of a redirect.
    fn redirect(&mut self, rewrite: &Rewrite) {
        let mut text = self.request.scratch().take_buffer();
        append_value(&rewrite.path, self.request, true, &mut text);
        let mut location = Vec::with_capacity(text.len() + self.request.args.len() + 1);
        let unescaped = unescape(&text, Unescape::Redirect, &mut location);
        location.extend_from_slice(text.get(unescaped..).unwrap_or_default());
        self.request.scratch().give_buffer(text);
        if rewrite.keep_args && !self.request.args.is_empty() {
            location.push(if rewrite.has_args { b'&' } else { b'?' });
            location.extend_from_slice(&self.request.args);
        }
        if self.log {
            logs::error!(
                self.request,
                Notice,
                "rewritten redirect: \"{}\"",
                logs::Printable(&location)
            );
        }
        self.request.trace(rewrite.position, || {
            format!("redirects to {}", String::from_utf8_lossy(&location))
        });
        self.request.response.location = Some(location.into());
    }

    /// Replaces the path and the arguments of the request's URI.
    fn change_uri(&mut self, rewrite: &Rewrite) {
        let mut path = self.request.scratch().take_buffer();
        append_value(&rewrite.path, self.request, false, &mut path);
        match &rewrite.args {
            Some(text) => {
                let mut args = self.request.scratch().take_buffer();
                append_value(text, self.request, true, &mut args);
                if rewrite.keep_args && !self.request.args.is_empty() {
                    args.push(b'&');
                    args.extend_from_slice(&self.request.args);
                }
                self.request.uri_state.args_written = true;
                let old = std::mem::replace(&mut self.request.args, args);
                self.request.scratch().give_buffer(old);
            }
            None if !rewrite.keep_args => self.request.args.clear(),
            None => {}
        }
        if self.log {
            // Logged before the URI is replaced, since log lines of a subrequest name the URI
            // before the rewrite.
            logs::error!(
                self.request,
                Notice,
                "rewritten data: \"{}\", args: \"{}\"",
                logs::Printable(&path),
                logs::Printable(&self.request.args)
            );
        }
        let old = std::mem::replace(&mut self.request.uri, path);
        self.request.scratch().give_buffer(old);
        let request = &mut *self.request;
        if request.trail.is_some() {
            let mark = if request.args.is_empty() { "" } else { "?" };
            let (uri, args) = (&request.uri, &request.args);
            let (uri, args) = (String::from_utf8_lossy(uri), String::from_utf8_lossy(args));
            let text = format!("the URI becomes {uri}{mark}{args}");
            request.trace(rewrite.position, || text);
        }
    }

    fn run_return(&mut self, compiled: &Return) -> Step {
        let status = compiled.status;
        let text = || format!("answers with {status}");
        self.request.trace(compiled.position, text);
        if status >= 400 && compiled.text.is_empty() {
            return Step::Finish(status);
        }
        // nginx discards a chunked body before it evaluates the text, which a text with
        // `$content_length` shows.
        if self.request.is_main() && self.request.body.chunked() && !self.request.body.is_read() {
            self.request.body.note_skipped();
        }
        // Set before the text is evaluated, which may contain `$status`.
        self.request.response.status = status;
        let text = compiled.text.evaluate(self.request);
        if let 301 | 302 | 303 | 307 | 308 = status {
            return Step::Return(status, text);
        }
        self.request.response.content_length = Some(text.len() as u64);
        self.request.set_content_type();
        Step::Respond(if text.is_empty() {
            Body::Empty
        } else {
            Body::bytes(text)
        })
    }
}

/// Appends a value of a script. With `escape_captures`, captures are escaped for a query string if
/// the client's URI was escaped, since they are cut out of the decoded URI.
pub(super) fn append_value(
    text: &Text,
    request: &mut Request,
    escape_captures: bool,
    out: &mut Vec<u8>,
) {
    let Text::Parts(parts) = text else {
        return text.append_to(request, out);
    };
    if !(escape_captures && request.uri_state.escaped) {
        return text.append_to(request, out);
    }
    for part in parts {
        match part {
            Part::Literal(bytes) => out.extend_from_slice(bytes),
            Part::Variable(variable) => {
                request.append_variable(*variable, out);
            }
            Part::Capture(number) => {
                escape(
                    request.captures.group(usize::from(*number)),
                    Escape::Args,
                    out,
                );
            }
        }
    }
}
