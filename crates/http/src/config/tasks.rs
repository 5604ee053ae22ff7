//! The tasks that directives have in the handling of requests, for `tidegate explain`.

/// The kind of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskKind {
    /// Sets the client's address to the one that a proxy has sent.
    RealAddress,
    /// Rewrites the URI, or responds at once.
    Rewrite,
    /// Limits requests and connections.
    Limits,
    /// Grants or refuses access.
    Access,
    /// Runs before the content handler.
    BeforeContent,
    /// Makes the response. The directives that set content handlers have this kind too; the entries
    /// of their modules name them (`content`).
    Content,
    /// Serves files, if no directive makes the response.
    Files,
    /// Fetches a response from the upstream in slices (`slice`).
    Slice,
    /// Changes fields of the response's head.
    HeaderFields,
    /// Changes the body.
    Body,
    /// Compresses the body.
    Compression,
    /// Limits the rate of the response.
    Pace,
    /// Sets pages for errors.
    Errors,
    /// Logs the request, or runs after it.
    Log,
}

impl TaskKind {
    /// The kinds in the order in which they are listed. [`TaskKind::Content`] replaces
    /// [`TaskKind::Files`].
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

    /// The name of the kind in listings.
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

/// A task, and the directives that enable it.
#[derive(Clone, Copy, Debug)]
pub struct Task {
    /// The kind of the task.
    pub kind: TaskKind,
    /// The position among the tasks of the same kind: tasks with lower numbers are listed earlier.
    pub order: u8,
    /// The directives, in the order in which they are listed.
    pub directives: &'static [&'static str],
    /// The task also runs without any of the directives.
    pub by_default: bool,
}

impl Task {
    /// A task that is listed first of its kind, and only runs if a directive enables it.
    pub const fn of(kind: TaskKind, directives: &'static [&'static str]) -> Task {
        Task {
            kind,
            order: 0,
            directives,
            by_default: false,
        }
    }

    /// Sets the position of the task among the tasks of its kind.
    #[must_use]
    pub const fn listed(self, order: u8) -> Task {
        Task { order, ..self }
    }

    /// Makes the task run without any directive, too.
    #[must_use]
    pub const fn by_default(self) -> Task {
        Task {
            by_default: true,
            ..self
        }
    }
}
