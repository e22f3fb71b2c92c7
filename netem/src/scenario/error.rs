//! What is wrong with a scenario file, said so that the reader can mend it: the key, the line, the line's text, and the fix.

use std::fmt;
use std::path::PathBuf;

use super::tree::{Place, Source};

/// Longest part of the offending line that is shown, in characters.
const SHOWN_CHARS: usize = 120;

/// Why a file is not a scenario.
#[derive(Debug, thiserror::Error)]
pub enum ScenarioError {
    /// The file could not be read.
    #[error("cannot read {}: {source}; give the path of a scenario file", path.display())]
    Unreadable {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file is longer than any scenario; it was not looked at.
    #[error("{} has more than {max_bytes} bytes; give the path of a scenario file", path.display())]
    TooLong {
        /// Which file.
        path: PathBuf,
        /// The longest accepted.
        max_bytes: u64,
    },
    /// A key or value that cannot be used.
    #[error("{0}")]
    Fault(Box<Fault>),
}

impl ScenarioError {
    /// The fault with its place, if the text was looked at.
    pub fn fault(&self) -> Option<&Fault> {
        match self {
            Self::Fault(fault) => Some(fault),
            _ => None,
        }
    }
}

/// One fault at one place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// Where the text is from: the path of a file, or `--set`.
    pub from: String,
    /// The variant in which it shows; empty where the file has none, or where it shows in all.
    pub variant: String,
    /// Dotted path of the key, such as `node.fast.cpu`; empty where a line holds no key.
    pub key: String,
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// How many characters of the line are meant.
    pub width: usize,
    /// The line itself, without control characters, cut after 120 characters.
    pub source_line: String,
    /// What is wrong.
    pub problem: String,
    /// What to write instead.
    pub fix: String,
}

/// A fault whose place is not yet looked up in its text.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Wrong {
    pub(super) place: Place,
    pub(super) key: String,
    pub(super) problem: String,
    pub(super) fix: String,
}

impl Wrong {
    pub(super) fn new(
        place: &Place,
        key: impl Into<String>,
        problem: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        Self {
            place: place.clone(),
            key: key.into(),
            problem: problem.into(),
            fix: fix.into(),
        }
    }

    /// With its line, column and text.
    pub(super) fn located(self, sources: &[Source], variant: &str) -> ScenarioError {
        let source = sources.get(self.place.source);
        let (from, text) = source.map_or(("", ""), |source| (&source.name, &source.text));
        let start = text.floor_char_boundary(self.place.span.start);
        let end = text.floor_char_boundary(self.place.span.end).max(start);
        let line_start = text[..start].rfind('\n').map_or(0, |newline| newline + 1);
        let line_end = text[start..]
            .find('\n')
            .map_or(text.len(), |newline| start + newline);
        let width = text[start..end.min(line_end)].chars().count().max(1);
        ScenarioError::Fault(Box::new(Fault {
            from: from.to_owned(),
            variant: variant.to_owned(),
            key: shown(&self.key),
            line: text[..start].matches('\n').count() + 1,
            column: text[line_start..start].chars().count() + 1,
            width,
            source_line: shown(&text[line_start..line_end]),
            problem: self.problem,
            fix: self.fix,
        }))
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} line {}, column {}: ",
            self.from, self.line, self.column
        )?;
        if !self.variant.is_empty() {
            write!(f, "in variant {}: ", self.variant)?;
        }
        if !self.key.is_empty() {
            write!(f, "{}: ", self.key)?;
        }
        writeln!(f, "{}", self.problem)?;
        let number = self.line.to_string();
        writeln!(f, " {number} | {}", self.source_line)?;
        if self.column <= SHOWN_CHARS {
            let width = self.width.min(SHOWN_CHARS + 1 - self.column);
            let margin = " ".repeat(number.len());
            let indent = " ".repeat(self.column - 1);
            writeln!(f, " {margin} | {indent}{}", "^".repeat(width))?;
        }
        write!(f, "fix: {}", self.fix)
    }
}

/// `line` fit for a terminal: a foreign file must not be able to move the cursor.
pub(super) fn shown(line: &str) -> String {
    line.trim_end_matches('\r')
        .chars()
        .take(SHOWN_CHARS)
        .map(|c| match c {
            '\t' => ' ',
            c if c.is_control() => '?',
            c => c,
        })
        .collect()
}

/// The fix for a name that is none of `known`.
pub(super) fn did_you_mean<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    /// Longer names are not compared: the comparison is quadratic.
    const LONGEST: usize = 64;
    /// As many as a reader takes in at a glance.
    const LISTED: usize = 24;
    let known: Vec<&str> = known.into_iter().collect();
    let lower = name.to_lowercase();
    let budget = (lower.chars().count() / 3).max(1);
    let close = |candidate: &&&str| {
        strsim::osa_distance(&lower, &candidate.to_lowercase()) <= budget
            || lower.len() >= 3 && candidate.starts_with(&lower)
    };
    let nearest = (name.len() <= LONGEST)
        .then(|| {
            known
                .iter()
                .filter(close)
                .min_by_key(|candidate| strsim::osa_distance(&lower, candidate))
        })
        .flatten();
    match (nearest, known.as_slice()) {
        (Some(near), _) => format!("did you mean `{near}`?"),
        (None, []) => "remove it: nothing belongs here".into(),
        (None, known) if known.len() > LISTED => {
            format!("use one of {}, …", known[..LISTED].join(", "))
        }
        (None, known) => format!("use one of {}", known.join(", ")),
    }
}
