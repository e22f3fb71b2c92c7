//! Takes the keys of one table one by one. Keys that nobody asked for are the unknown ones.

use std::cell::RefCell;
use std::fmt::Display;
use std::ops::RangeInclusive;
use std::time::Duration;

use super::error::{Wrong, did_you_mean};
use super::tree::{self, Item, Table, Value};
use super::units;

/// A table that is being read.
#[derive(Debug)]
pub(super) struct Section<'a> {
    item: &'a Item,
    table: &'a Table,
    path: String,
    asked: RefCell<Vec<&'static str>>,
}

impl<'a> Section<'a> {
    /// The table at `path`; empty: the whole file.
    pub(super) fn of(item: &'a Item, path: impl Into<String>) -> Result<Self, Wrong> {
        let path = path.into();
        let Value::Table(table) = &item.value else {
            let problem = format!("is {}, not a table", item.value.kind());
            let fix = "write a `[section]` with `key = value` lines, or `{ key = value }`";
            return Err(Wrong::new(&item.place, path, problem, fix));
        };
        Ok(Self {
            item,
            table,
            path,
            asked: RefCell::default(),
        })
    }

    /// The path of a key in here.
    pub(super) fn path(&self, key: &str) -> String {
        match self.path.as_str() {
            "" => key.to_owned(),
            path => format!("{path}.{key}"),
        }
    }

    /// A fault at the value of `key`, or at the section where it has none.
    pub(super) fn wrong(
        &self,
        key: &str,
        problem: impl Into<String>,
        fix: impl Into<String>,
    ) -> Wrong {
        let place = match self.table.get(key) {
            Some(item) if matches!(item.value, Value::Table(_)) => &item.key,
            Some(item) => &item.place,
            None => &self.item.key,
        };
        Wrong::new(place, self.path(key), problem, fix)
    }

    /// The value of `key` as it is.
    pub(super) fn raw(&self, key: &'static str) -> Option<&'a Item> {
        self.ask(key);
        self.table.get(key)
    }

    fn ask(&self, key: &'static str) {
        let mut asked = self.asked.borrow_mut();
        if !asked.contains(&key) {
            asked.push(key);
        }
    }

    /// Whether `key` is there.
    pub(super) fn has(&self, key: &str) -> bool {
        self.table.contains_key(key)
    }

    /// What must be there.
    pub(super) fn required<T>(
        &self,
        key: &str,
        value: Option<T>,
        example: &str,
    ) -> Result<T, Wrong> {
        value.ok_or_else(|| self.missing(key, format!("add a line `{key} = {example}`")))
    }

    /// The fault that `key` is not there. A mistyped key is the likelier story than a missing one.
    pub(super) fn missing(&self, key: &str, fix: impl Into<String>) -> Wrong {
        let asked = self.asked.borrow();
        let mut strangers = self.table.iter();
        let stranger = strangers.find(|(name, _)| {
            !asked.contains(&name.as_str()) && did_you_mean(name, [key]).starts_with("did")
        });
        match stranger {
            Some((name, item)) => unknown(item, self.path(name), name, &[key]),
            None => self.wrong(key, "is missing", fix),
        }
    }

    fn typed<T>(
        &self,
        key: &'static str,
        wanted: &str,
        read: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, Wrong> {
        let Some(item) = self.raw(key) else {
            return Ok(None);
        };
        let problem = || format!("is {}", item.value.kind());
        read(&item.value)
            .map(Some)
            .ok_or_else(|| self.wrong(key, problem(), format!("write {wanted}")))
    }

    pub(super) fn text(&self, key: &'static str) -> Result<Option<&'a str>, Wrong> {
        self.typed(key, "a text in double quotes", |value| match value {
            Value::Text(text) => Some(text.as_str()),
            _ => None,
        })
    }

    pub(super) fn flag(&self, key: &'static str) -> Result<Option<bool>, Wrong> {
        self.typed(key, "true or false", |value| match value {
            Value::Flag(flag) => Some(*flag),
            _ => None,
        })
    }

    /// Sections `[[key]]`.
    pub(super) fn sections(&self, key: &'static str) -> Result<Vec<Section<'a>>, Wrong> {
        let wanted = format!("each of them below a line [[{key}]]");
        let items = self.typed(key, &wanted, |value| match value {
            Value::List(items) => Some(items.as_slice()),
            _ => None,
        })?;
        let path = |number: usize, item: &Item| match tree::name(item) {
            "" => self.path(&format!("{key}.{number}")),
            name => self.path(&format!("{key}.{name}")),
        };
        let items = (0..).zip(items.unwrap_or_default());
        items
            .map(|(n, item)| Section::of(item, path(n, item)))
            .collect()
    }

    /// The section `[key]`.
    pub(super) fn section(&self, key: &'static str) -> Result<Option<Section<'a>>, Wrong> {
        let item = self.raw(key);
        item.map(|item| Section::of(item, self.path(key)))
            .transpose()
    }

    pub(super) fn whole(
        &self,
        key: &'static str,
        range: RangeInclusive<u64>,
    ) -> Result<Option<u64>, Wrong> {
        let wanted = "a whole number";
        let whole = self.typed(key, wanted, |value| match value {
            Value::Whole(whole) => Some(*whole),
            _ => None,
        })?;
        let Some(whole) = whole else { return Ok(None) };
        match u64::try_from(whole)
            .ok()
            .filter(|whole| range.contains(whole))
        {
            Some(whole) => Ok(Some(whole)),
            None => Err(self.out_of_range(key, whole, range.start(), range.end())),
        }
    }

    pub(super) fn number(
        &self,
        key: &'static str,
        range: RangeInclusive<f64>,
    ) -> Result<Option<f64>, Wrong> {
        let number = self.typed(key, "a number, such as 0.5", |value| match value {
            Value::Whole(whole) => Some(*whole as f64),
            Value::Number(number) => Some(*number),
            _ => None,
        })?;
        match number {
            Some(number) if !range.contains(&number) => {
                Err(self.out_of_range(key, number, range.start(), range.end()))
            }
            number => Ok(number),
        }
    }

    /// A number, or none for `"none"`.
    pub(super) fn number_or_none(
        &self,
        key: &'static str,
        range: RangeInclusive<f64>,
    ) -> Result<Option<Option<f64>>, Wrong> {
        match self.raw(key).map(|item| &item.value) {
            Some(Value::Text(text)) if text == "none" => Ok(Some(None)),
            _ => Ok(self.number(key, range)?.map(Some)),
        }
    }

    fn out_of_range(
        &self,
        key: &str,
        value: impl Display,
        least: impl Display,
        most: impl Display,
    ) -> Wrong {
        let fix = format!("write a number from {least} to {most}");
        self.wrong(key, format!("is {value}"), fix)
    }

    /// A time with its unit.
    pub(super) fn duration(&self, key: &'static str) -> Result<Option<Duration>, Wrong> {
        const WANTED: &str =
            "a time with its unit in quotes, such as \"5ms\", \"40s\", \"2m\" or \"1h\"";
        let duration = self.typed(key, WANTED, |value| match value {
            Value::Text(text) => Some(units::duration(text)),
            _ => None,
        })?;
        self.understood(key, duration, WANTED)
    }

    /// Bits per second; none also for `"none"`.
    pub(super) fn rate(&self, key: &'static str) -> Result<Option<Option<u64>>, Wrong> {
        const WANTED: &str = "bits per second with their unit in quotes, such as \"50M\" or \"1G\"; \"none\" for no limit";
        let rate = self.typed(key, WANTED, |value| match value {
            Value::Text(text) if text == "none" => Some(Some(None)),
            Value::Text(text) => Some(units::scaled(text, 1000).map(Some)),
            _ => None,
        })?;
        self.understood(key, rate, WANTED)
    }

    /// Bytes.
    pub(super) fn size(&self, key: &'static str) -> Result<Option<u64>, Wrong> {
        const WANTED: &str =
            "bytes with their unit in quotes, such as \"256K\", \"512M\" or \"2G\"";
        let size = self.typed(key, WANTED, |value| match value {
            Value::Text(text) => Some(units::scaled(text, 1024)),
            Value::Whole(whole) => Some(u64::try_from(*whole).ok()),
            _ => None,
        })?;
        self.understood(key, size, WANTED)
    }

    fn understood<T>(
        &self,
        key: &str,
        value: Option<Option<T>>,
        wanted: &str,
    ) -> Result<Option<T>, Wrong> {
        let refuse = || self.wrong(key, "cannot be read", format!("write {wanted}"));
        value.map(|value| value.ok_or_else(refuse)).transpose()
    }

    /// The keys that are there, of those asked for here.
    pub(super) fn those_of(&self, keys: &[&'static str]) -> Vec<&'static str> {
        keys.iter().for_each(|key| self.ask(key));
        let there = keys.iter().filter(|key| self.has(key));
        there.copied().collect()
    }

    /// The first key that was not asked for.
    pub(super) fn stranger(&self) -> Option<Wrong> {
        let asked = self.asked.borrow();
        let strangers = self.table.iter();
        let strangers = strangers.filter(|(key, _)| !asked.contains(&key.as_str()));
        let first = strangers.min_by_key(|(_, item)| item.key.span.start);
        first.map(|(key, item)| unknown(item, self.path(key), key, &asked))
    }

    /// Keys that were not asked for are an error.
    pub(super) fn finish(self) -> Result<(), Wrong> {
        self.stranger().map_or(Ok(()), Err)
    }
}

fn unknown(item: &Item, path: String, key: &str, known: &[&str]) -> Wrong {
    let fix = did_you_mean(key, known.iter().copied());
    Wrong::new(&item.key, path, "unknown key", fix)
}

/// Texts of a list, or one text.
pub(super) fn texts(item: &Item, path: &str) -> Result<Vec<String>, Wrong> {
    let one = |item: &Item| match &item.value {
        Value::Text(text) => Ok(text.clone()),
        other => {
            let problem = format!("holds {}", other.kind());
            let fix = "write texts in double quotes";
            Err(Wrong::new(&item.place, path, problem, fix))
        }
    };
    match &item.value {
        Value::List(items) => items.iter().map(one).collect(),
        _ => Ok(vec![one(item)?]),
    }
}
