//! One thing that was looked at, how it is, and what to do about it.

use std::fmt;

use serde::Serialize;

/// How it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Grade {
    /// As it should be.
    Good,
    /// Good to know.
    Note,
    /// Works, but worse than it could.
    Warning,
    /// Does not work.
    Bad,
}

/// One finding.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    /// What was looked at.
    pub(super) topic: &'static str,
    /// How it is.
    pub(super) grade: Grade,
    /// What was seen.
    pub(super) message: String,
    /// What to do; none where nothing needs doing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) fix: Option<String>,
}

impl Finding {
    pub(super) fn good(topic: &'static str, message: impl Into<String>) -> Self {
        Self {
            topic,
            grade: Grade::Good,
            message: message.into(),
            fix: None,
        }
    }

    pub(super) fn note(
        topic: &'static str,
        message: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        Self {
            topic,
            grade: Grade::Note,
            message: message.into(),
            fix: Some(fix.into()),
        }
    }

    pub(super) fn warning(
        topic: &'static str,
        message: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        Self {
            topic,
            grade: Grade::Warning,
            message: message.into(),
            fix: Some(fix.into()),
        }
    }

    pub(super) fn bad(
        topic: &'static str,
        message: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        Self {
            topic,
            grade: Grade::Bad,
            message: message.into(),
            fix: Some(fix.into()),
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let grade = match self.grade {
            Grade::Good => "ok",
            Grade::Note => "note",
            Grade::Warning => "warning",
            Grade::Bad => "BAD",
        };
        write!(f, "{grade:<8} {:<11} {}", self.topic, self.message)?;
        match &self.fix {
            Some(fix) => write!(f, "\n{:<20} fix: {fix}", ""),
            None => Ok(()),
        }
    }
}
