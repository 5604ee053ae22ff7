//! Runs scripts: what happens to a request in the two rewrite phases.

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
    /// `Relocate` where the URI was rewritten and a location must be found for it; in a server that
    /// is next in any case.
    fn run(&self, request: &mut Request) -> Step {
        let mut run = Run {
            request,
            log: self.log,
            quote: true,
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
    /// Whether captures in values are escaped where the URI came escaped. So it is until the
    /// first `rewrite` has matched: that is nginx's way, and sites depend on what it gives.
    quote: bool,
    /// Whether a location must be found for a rewritten URI.
    uri_changed: bool,
}

/// Goes on, ends the script (`None`), or ends the phase with a step.
type Flow = ControlFlow<Option<Step>>;

impl Run<'_> {
    fn steps(&mut self, steps: &[Instruction]) -> Flow {
        steps.iter().try_for_each(|step| self.step(step))
    }

    fn step(&mut self, step: &Instruction) -> Flow {
        match step {
            Instruction::Set { target, value } => {
                let mut text = self.request.scratch().take_buffer();
                append_value(value, self.request, self.quote, &mut text);
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
                let holds = condition.holds(self.request, self.quote, self.log);
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
                    self.request.leave_location();
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
        // What is logged of a subrequest names its URI.
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
        self.quote = false;
        self.request.course.internal = true;
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

    /// 500: whether a regex matches could not be decided.
    fn undecided(&mut self, position: Position) -> Flow {
        let text = || "could not be decided".to_owned();
        self.request.trace(position, text);
        Flow::Break(Some(Step::Finish(500)))
    }

    /// Sets the Location of a redirect.
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

    /// Replaces path and arguments.
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
            // A subrequest is named by the URI that it has had so far.
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
        // As in nginx, chunks are dropped by then: the text may ask for `$content_length`.
        if self.request.is_main() && self.request.body.chunked() && !self.request.body.is_read() {
            self.request.body.note_skipped();
        }
        // The text may ask for `$status`.
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

/// Appends a value of a script. Where `quote` says so, captures are escaped for a query if the
/// client's URI came escaped: they were cut out of its decoded form.
pub(super) fn append_value(text: &Text, request: &mut Request, quote: bool, out: &mut Vec<u8>) {
    let Text::Parts(parts) = text else {
        return text.append_to(request, out);
    };
    if !(quote && request.uri_state.escaped) {
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
