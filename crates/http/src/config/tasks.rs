//! Which directives have something to do for requests, for people who ask why a URL gets its
//! answer.

/// What part of the work for a request a task is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskKind {
    /// The client's address is taken from what a proxy says.
    RealAddress,
    /// The URI is rewritten, or answered at once.
    Rewrite,
    /// Requests and connections are limited.
    Limits,
    /// Access is granted or refused.
    Access,
    /// What is done before the content.
    BeforeContent,
    /// The answer is made by a directive, beside those that a module's entry names for it
    /// (`content`).
    Content,
    /// The answer is looked for among files, where no directive makes it.
    Files,
    /// A response is fetched in slices.
    Slice,
    /// Fields of the response's head are changed.
    HeaderFields,
    /// The body is changed.
    Body,
    /// The body is compressed.
    Compression,
    /// The response is sent slowly.
    Pace,
    /// Errors get pages of their own here.
    Errors,
    /// The request is logged, and what follows it.
    Log,
}

impl TaskKind {
    /// The kinds that are listed, in that order. [`TaskKind::Content`] takes the place of files.
    pub const ALL: &'static [TaskKind] = &[
        TaskKind::RealAddress,
        TaskKind::Rewrite,
        TaskKind::Limits,
        TaskKind::Access,
        TaskKind::BeforeContent,
        TaskKind::Files,
        TaskKind::Slice,
        TaskKind::HeaderFields,
        TaskKind::Body,
        TaskKind::Compression,
        TaskKind::Pace,
        TaskKind::Errors,
        TaskKind::Log,
    ];

    /// What people call it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            TaskKind::RealAddress => "real address",
            TaskKind::Rewrite => "rewrite",
            TaskKind::Limits => "limits",
            TaskKind::Access => "access",
            TaskKind::BeforeContent => "before content",
            TaskKind::Content => "content",
            TaskKind::Files => "files",
            TaskKind::Slice => "slice",
            TaskKind::HeaderFields => "header fields",
            TaskKind::Body => "body",
            TaskKind::Compression => "compression",
            TaskKind::Pace => "pace",
            TaskKind::Errors => "errors",
            TaskKind::Log => "log",
        }
    }
}

/// Directives that have a module do its part of the work.
#[derive(Clone, Copy, Debug)]
pub struct Task {
    /// What part that is.
    pub kind: TaskKind,
    /// Where it is listed among those of its kind: the lower, the earlier.
    pub order: u8,
    /// The directives, in the order in which they are listed.
    pub directives: &'static [&'static str],
    /// It also has something to do where no line says so.
    pub by_default: bool,
}

impl Task {
    /// A task that is listed first of its kind, and only if a directive asks for it.
    pub const fn of(kind: TaskKind, directives: &'static [&'static str]) -> Task {
        Task {
            kind,
            order: 0,
            directives,
            by_default: false,
        }
    }

    /// Listed behind those of lower order.
    #[must_use]
    pub const fn listed(self, order: u8) -> Task {
        Task { order, ..self }
    }

    /// Done where no line asks for it, too.
    #[must_use]
    pub const fn by_default(self) -> Task {
        Task {
            by_default: true,
            ..self
        }
    }
}
