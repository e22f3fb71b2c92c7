//! A TOML text whose keys remember where they stood.
//!
//! Sections are read with serde one at a time. When serde refuses a section, its message names a key or a value but,
//! inside tagged tables, no place; `explain` finds the place again by looking that key or value up in the section.

use std::ops::Range;

use serde::de::DeserializeOwned;
use toml::Spanned;
use toml::de::{DeTable, DeValue, ValueDeserializer};

use super::error::{Fault, JobError, shown};
use crate::nearest::nearest;

/// A parsed text.
pub(super) struct Document<'t> {
    text: &'t str,
    root: Spanned<DeTable<'t>>,
}

/// A key of a table with the place of the key and of its value.
struct Entry<'a, 't> {
    path: String,
    key: Range<usize>,
    value: &'a Spanned<DeValue<'t>>,
}

impl<'t> Document<'t> {
    /// Reads `text` as TOML.
    pub(super) fn parse(text: &'t str) -> Result<Self, JobError> {
        match DeTable::parse(text) {
            Ok(root) => Ok(Self { text, root }),
            Err(error) => {
                let span = error.span().unwrap_or(0..0);
                let start = text
                    .get(..span.start)
                    .and_then(|before| before.rfind('\n'))
                    .map_or(0, |n| n + 1);
                let line = text
                    .get(start..)
                    .and_then(|rest| rest.lines().next())
                    .unwrap_or_default();
                let key = line.split_once('=').map_or("", |(key, _)| key.trim());
                let problem = format!("is not TOML: {}", error.message());
                Err(Fault::at(
                    text,
                    span,
                    shown(key),
                    problem,
                    "write `key = value` lines below `[section]` lines",
                ))
            }
        }
    }

    /// The top-level keys that are not in `known` are an error.
    pub(super) fn only_these_keys(&self, known: &[&str]) -> Result<(), JobError> {
        let mut strangers: Vec<_> = self
            .root
            .get_ref()
            .keys()
            .filter(|key| !known.contains(&&**key.get_ref()))
            .collect();
        strangers.sort_by_key(|key| key.span().start);
        let Some(stranger) = strangers.first() else {
            return Ok(());
        };
        let name = stranger.get_ref();
        Err(Fault::at(
            self.text,
            stranger.span(),
            shown(name),
            "unknown key",
            did_you_mean(name, known),
        ))
    }

    /// Reads the value of the top-level `key`; none if it is absent.
    ///
    /// # Errors
    /// Whatever serde refuses, at its place.
    pub(super) fn read<T: DeserializeOwned>(&self, key: &str) -> Result<Option<T>, JobError> {
        let Some(value) = self.root.get_ref().get(key) else {
            return Ok(None);
        };
        T::deserialize(ValueDeserializer::from(value.clone()))
            .map(Some)
            .map_err(|error| self.explain(key, error.message(), error.span()))
    }

    /// A fault at the value of `path`, or where the nearest section that is there begins.
    pub(super) fn fault(
        &self,
        path: &str,
        problem: impl Into<String>,
        fix: impl Into<String>,
    ) -> JobError {
        let entries = self.entries();
        let mut found = path;
        let span = loop {
            if let Some(entry) = entries.iter().find(|entry| entry.path == found) {
                break match (found == path, entry.value.get_ref().is_table()) {
                    (true, false) => entry.value.span(),
                    _ => entry.key.clone(),
                };
            }
            match found.rsplit_once('.') {
                Some((parent, _)) => found = parent,
                None => break 0..0,
            }
        };
        Fault::at(self.text, span, path.to_owned(), problem, fix)
    }

    /// All keys of the text, outer before inner, in the order of the text.
    fn entries(&self) -> Vec<Entry<'_, 't>> {
        fn walk<'a, 't>(table: &'a DeTable<'t>, prefix: &str, entries: &mut Vec<Entry<'a, 't>>) {
            for (key, value) in table.iter() {
                let path = match prefix {
                    "" => key.get_ref().to_string(),
                    _ => format!("{prefix}.{}", key.get_ref()),
                };
                if let DeValue::Table(inner) = value.get_ref() {
                    walk(inner, &path, entries);
                }
                entries.push(Entry {
                    path,
                    key: key.span(),
                    value,
                });
            }
        }
        let mut entries = vec![];
        walk(self.root.get_ref(), "", &mut entries);
        entries.sort_by_key(|entry| (entry.key.start, entry.path.len()));
        entries
    }

    /// Turns what serde says about `section` into a fault at the key or value meant.
    fn explain(&self, section: &str, message: &str, span: Option<Range<usize>>) -> JobError {
        let inside = |entry: &&Entry<'_, '_>| {
            entry
                .path
                .strip_prefix(section)
                .is_some_and(|rest| rest.starts_with('.'))
        };
        let entries = self.entries();
        let mut inner = entries.iter().filter(inside);
        let words: Vec<&str> = message.split('`').skip(1).step_by(2).collect();
        let subject = words.first().copied().unwrap_or_default();
        let known = words.get(1..).unwrap_or_default();

        if message.starts_with("unknown field") {
            if let Some(entry) = inner.find(|entry| last(&entry.path) == subject) {
                let fix = did_you_mean(subject, known);
                return Fault::at(
                    self.text,
                    entry.key.clone(),
                    shown(&entry.path),
                    "unknown key",
                    fix,
                );
            }
        } else if message.starts_with("missing field") {
            let parent = span.as_ref().and_then(|span| {
                entries
                    .iter()
                    .rev()
                    .find(|entry| entry.value.span() == *span)
            });
            let parent = parent.map_or(section, |entry| &entry.path);
            let path = format!("{parent}.{subject}");
            return self.fault(
                &path,
                "is missing",
                format!("add a line `{subject} = …` to [{parent}]"),
            );
        } else if let Some(value) = message.strip_prefix("unknown variant").and(words.first())
            && let Some(entry) = inner.find(|entry| entry.value.get_ref().as_str() == Some(value))
        {
            let (problem, fix) = (
                format!("{:?} is not a choice", shown(value)),
                did_you_mean(value, known),
            );
            return Fault::at(
                self.text,
                entry.value.span(),
                shown(&entry.path),
                problem,
                fix,
            );
        }
        let mut suspects = entries
            .iter()
            .filter(|entry| inside(entry) || entry.path == section);
        // Serde's place is good when it is a value; inside tagged tables it is the table, and the text of the value helps.
        let exact = span
            .clone()
            .and_then(|span| suspects.clone().find(|entry| entry.value.span() == span));
        let exact = exact.filter(|entry| !entry.value.get_ref().is_table());
        let meant = || {
            suspects.find(|entry| {
                refused_value(message).is_some_and(|value| self.written(entry) == value)
            })
        };
        match exact.or_else(meant) {
            Some(entry) => Fault::at(
                self.text,
                entry.value.span(),
                shown(&entry.path),
                message.to_owned(),
                wanted(message),
            ),
            None => {
                let fallback = self
                    .root
                    .get_ref()
                    .get_key_value(section)
                    .map_or(0..0, |(key, _)| key.span());
                Fault::at(
                    self.text,
                    span.unwrap_or(fallback),
                    shown(section),
                    message.to_owned(),
                    wanted(message),
                )
            }
        }
    }

    /// The text of a value without its quotes.
    fn written(&self, entry: &Entry<'_, '_>) -> &str {
        self.text
            .get(entry.value.span())
            .unwrap_or_default()
            .trim_matches(['"', '\''])
    }
}

/// The last key of a dotted path.
fn last(path: &str) -> &str {
    path.rsplit('.').next().unwrap_or(path)
}

/// The value in serde's "invalid type: string "many", expected u32" and "invalid value: integer `-1`, expected …".
fn refused_value(message: &str) -> Option<&str> {
    let found = message.split_once(": ")?.1.rsplit_once(", expected")?.0;
    let value = found.split_once(' ').map_or(found, |(_, value)| value);
    Some(value.trim_matches(['`', '"']))
}

/// What serde expected, in the words of a file's author.
fn wanted(message: &str) -> String {
    let expected = message
        .rsplit_once("expected ")
        .map_or("", |(_, expected)| expected);
    match expected {
        "u8" | "u16" | "u32" | "u64" | "usize" => "write a whole number, 0 or more".into(),
        "i8" | "i16" | "i32" | "i64" | "isize" => "write a whole number".into(),
        "f32" | "f64" => "write a number, such as 0.5".into(),
        "a string" | "string" => "write a text in double quotes".into(),
        "a boolean" => "write true or false".into(),
        "" => "`skein init` writes a job file with every key explained".into(),
        other if other.starts_with("struct") || other.contains("internally tagged") => {
            "write it as a table: a `[section]` with `key = value` lines, or `{ key = value }`"
                .into()
        }
        other => format!("write {other}"),
    }
}

/// The fix for a name that is none of `known`.
fn did_you_mean(name: &str, known: &[&str]) -> String {
    match (nearest(name, known.iter().copied()), known) {
        (Some(near), _) => format!("did you mean `{near}`?"),
        (None, []) => "remove it: nothing belongs here".into(),
        (None, known) => format!("use one of {}", known.join(", ")),
    }
}

impl std::fmt::Debug for Document<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Document")
            .field("bytes", &self.text.len())
            .finish()
    }
}
