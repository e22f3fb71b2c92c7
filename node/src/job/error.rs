//! What is wrong with a job file, said so that the reader can mend it: the key, the line, the line's text, and the fix.

use std::fmt;
use std::ops::Range;

/// Longest part of the offending line that is shown, in characters.
const SHOWN_CHARS: usize = 120;

/// Why a text is not a job file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JobError {
    /// The text is longer than any job file; it was not looked at.
    #[error(
        "a job file has at most {max_bytes} bytes, this one has {bytes}: give the path of a job file"
    )]
    TooLong {
        /// Length of the text.
        bytes: usize,
        /// The longest accepted.
        max_bytes: usize,
    },
    /// A key or value that cannot be used.
    #[error("{0}")]
    Fault(Box<Fault>),
}

impl JobError {
    /// The fault with its place, if the text was looked at.
    pub fn fault(&self) -> Option<&Fault> {
        match self {
            Self::TooLong { .. } => None,
            Self::Fault(fault) => Some(fault),
        }
    }
}

/// One fault at one place of the text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// Dotted path of the key, such as `train.batch`; empty where a line holds no key.
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

impl Fault {
    /// A fault at the byte range `span` of `text`.
    pub(super) fn at(
        text: &str,
        span: Range<usize>,
        key: String,
        problem: impl Into<String>,
        fix: impl Into<String>,
    ) -> JobError {
        let start = text.floor_char_boundary(span.start);
        let end = text.floor_char_boundary(span.end).max(start);
        let line_start = text[..start].rfind('\n').map_or(0, |newline| newline + 1);
        let line_end = text[start..]
            .find('\n')
            .map_or(text.len(), |newline| start + newline);
        let column = text[line_start..start].chars().count() + 1;
        let width = text[start..end.min(line_end).max(start)]
            .chars()
            .count()
            .max(1);
        JobError::Fault(Box::new(Fault {
            key,
            line: text[..start].matches('\n').count() + 1,
            column,
            width,
            source_line: shown(&text[line_start..line_end]),
            problem: problem.into(),
            fix: fix.into(),
        }))
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}, column {}: ", self.line, self.column)?;
        if !self.key.is_empty() {
            write!(f, "{}: ", self.key)?;
        }
        writeln!(f, "{}", self.problem)?;
        let number = self.line.to_string();
        writeln!(f, " {number} | {}", self.source_line)?;
        if self.column <= SHOWN_CHARS {
            let width = self.width.min(SHOWN_CHARS + 1 - self.column);
            let margin = " ".repeat(number.len());
            writeln!(
                f,
                " {margin} | {}{}",
                " ".repeat(self.column - 1),
                "^".repeat(width)
            )?;
        }
        write!(f, "fix: {}", self.fix)
    }
}

/// `line` fit for a terminal: a foreign job file must not be able to move the cursor.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_shows_its_line_with_a_marker_below_and_the_fix() {
        let text = "seed = 1\n[train]\nbatch = 0\n";
        let error = Fault::at(
            text,
            25..26,
            "train.batch".into(),
            "is 0",
            "give at least 1",
        );
        assert_eq!(
            error.to_string(),
            "line 3, column 9: train.batch: is 0\n 3 | batch = 0\n   |         ^\nfix: give at least 1"
        );
    }

    #[test]
    fn a_place_past_the_end_or_inside_a_character_is_still_shown() {
        for (text, span) in [
            ("é = 1", 1..2),
            ("", 5..9),
            ("a\n", 2..2),
            ("a\u{1b}[2J = 1", 0..80),
        ] {
            let shown = Fault::at(text, span, String::new(), "p", "f").to_string();
            assert!(!shown.contains('\u{1b}'), "{shown}");
        }
    }
}
