//! The tree of a TOML text in which every key and value remembers its place, also after values of variants and of `--set`
//! were put in: an error then shows the line that is to blame.

use std::collections::BTreeMap;
use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::error::{Wrong, did_you_mean};

/// A text that values come from.
#[derive(Clone, Debug)]
pub(super) struct Source {
    /// A path, or `--set`.
    pub(super) name: String,
    pub(super) text: String,
}

/// Bytes of one of the sources.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Place {
    pub(super) source: usize,
    pub(super) span: Range<usize>,
}

/// A value with its place and its key's; an element of a list has only its own.
#[derive(Clone, Debug)]
pub(super) struct Item {
    pub(super) key: Place,
    pub(super) place: Place,
    pub(super) value: Value,
}

pub(super) type Table = BTreeMap<String, Item>;

#[derive(Clone, Debug)]
pub(super) enum Value {
    Text(String),
    Whole(i64),
    Number(f64),
    Flag(bool),
    List(Vec<Item>),
    Table(Table),
}

impl Value {
    /// In the words of a file's author.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Text(_) => "a text",
            Self::Whole(_) | Self::Number(_) => "a number",
            Self::Flag(_) => "true or false",
            Self::List(_) => "a list",
            Self::Table(_) => "a table",
        }
    }
}

/// Reads the text of the source with this number.
pub(super) fn parse(source: usize, text: &str) -> Result<Item, Wrong> {
    let root = DeTable::parse(text).map_err(|error| {
        let place = Place {
            source,
            span: error.span().unwrap_or(0..0),
        };
        let problem = format!("is not TOML: {}", error.message());
        let fix = "write `key = value` lines below `[section]` lines";
        Wrong::new(&place, "", problem, fix)
    })?;
    let place = Place { source, span: 0..0 };
    Ok(Item {
        key: place.clone(),
        place,
        value: Value::Table(table(source, root.get_ref())?),
    })
}

fn table(source: usize, from: &DeTable<'_>) -> Result<Table, Wrong> {
    let entries = from.iter().map(|(key, value)| {
        let place = Place {
            source,
            span: key.span(),
        };
        let item = item(source, Some(place), value)?;
        Ok((key.get_ref().to_string(), item))
    });
    entries.collect()
}

fn item(source: usize, key: Option<Place>, from: &Spanned<DeValue<'_>>) -> Result<Item, Wrong> {
    let place = Place {
        source,
        span: from.span(),
    };
    let refuse = |problem: &str, fix: &str| Err(Wrong::new(&place, "", problem, fix));
    let value = match from.get_ref() {
        DeValue::String(text) => Value::Text(text.to_string()),
        DeValue::Boolean(flag) => Value::Flag(*flag),
        DeValue::Integer(whole) => match i64::from_str_radix(whole.as_str(), whole.radix()) {
            Ok(whole) => Value::Whole(whole),
            Err(_) => return refuse("is too large a number", "write a smaller one"),
        },
        DeValue::Float(number) => match number.as_str().parse::<f64>() {
            Ok(number) if number.is_finite() => Value::Number(number),
            _ => return refuse("is no number that can be used", "write a finite number"),
        },
        DeValue::Datetime(_) => {
            return refuse("is a date", "write a time since the start, such as \"40s\"");
        }
        DeValue::Array(items) => {
            let items = items.iter().map(|inner| item(source, None, inner));
            Value::List(items.collect::<Result<_, _>>()?)
        }
        DeValue::Table(inner) => Value::Table(table(source, inner)?),
    };
    Ok(Item {
        key: key.unwrap_or_else(|| place.clone()),
        place,
        value,
    })
}

/// Puts `item` at a dotted path. A step into a list is the `name` of an element, its number from 0, or `*` for each of them.
pub(super) fn put(root: &mut Item, path: &str, item: &Item) -> Result<(), Wrong> {
    let steps: Vec<&str> = path.split('.').collect();
    if steps.len() > MAX_STEPS || steps.iter().any(|step| step.is_empty()) {
        let fix = "write keys joined by single dots, such as node.fast.cpu";
        return Err(Wrong::new(&item.key, path, "is no path of keys", fix));
    }
    put_at(root, &steps, path, item)
}

/// Deepest path; real ones have four steps.
const MAX_STEPS: usize = 32;

fn put_at(at: &mut Item, steps: &[&str], path: &str, item: &Item) -> Result<(), Wrong> {
    let Some((step, rest)) = steps.split_first() else {
        *at = item.clone();
        return Ok(());
    };
    match &mut at.value {
        Value::Table(table) => {
            let inner = table.entry((*step).to_owned()).or_insert_with(|| Item {
                value: Value::Table(Table::new()),
                ..item.clone()
            });
            put_at(inner, rest, path, item)
        }
        Value::List(items) => {
            let names: Vec<String> = items.iter().map(|item| name(item).to_owned()).collect();
            let chosen: Vec<usize> = match step.parse::<usize>() {
                _ if *step == "*" => (0..items.len()).collect(),
                Ok(number) if number < items.len() => vec![number],
                _ => (0..items.len()).filter(|&i| names[i] == *step).collect(),
            };
            if chosen.is_empty() {
                let problem = format!("nothing here is named {step:?}");
                let names = names.iter().map(String::as_str);
                let fix = did_you_mean(step, names.filter(|name| !name.is_empty()));
                return Err(Wrong::new(&item.key, path, problem, fix));
            }
            for index in chosen {
                put_at(&mut items[index], rest, path, item)?;
            }
            Ok(())
        }
        other => {
            let problem = format!("{step:?} cannot be set inside {}", other.kind());
            let fix = "give the path of a key that the file may hold, such as node.fast.cpu";
            Err(Wrong::new(&item.key, path, problem, fix))
        }
    }
}

/// The `name` of a list's element; empty where it has none.
pub(super) fn name(item: &Item) -> &str {
    match &item.value {
        Value::Table(table) => match table.get("name").map(|item| &item.value) {
            Some(Value::Text(name)) => name,
            _ => "",
        },
        _ => "",
    }
}

/// All values below `table` by their paths, in the order of the text. A quoted path with dots takes its value whole; other
/// tables are gone into.
pub(super) fn leaves<'a>(table: &'a Table, before: &str, into: &mut Vec<(String, &'a Item)>) {
    let mut entries: Vec<(&String, &Item)> = table.iter().collect();
    entries.sort_by_key(|(_, item)| item.key.span.start);
    for (key, item) in entries {
        let path = match before {
            "" => key.clone(),
            _ => format!("{before}.{key}"),
        };
        match &item.value {
            Value::Table(inner) if !key.contains('.') && !inner.is_empty() => {
                leaves(inner, &path, into);
            }
            _ => into.push((path, item)),
        }
    }
}

/// `over` put onto `under`, table by table.
pub(super) fn merged(under: Table, over: Table) -> Table {
    let mut all = under;
    for (key, item) in over {
        let below = all.remove(&key);
        let item = match (below, item) {
            (
                Some(Item {
                    value: Value::Table(below),
                    ..
                }),
                Item {
                    value: Value::Table(above),
                    key,
                    place,
                },
            ) => Item {
                key,
                place,
                value: Value::Table(merged(below, above)),
            },
            (_, item) => item,
        };
        all.insert(key, item);
    }
    all
}

/// As `toml` has it, to be written again.
pub(super) fn plain(table: &Table) -> toml::Table {
    fn value(item: &Item) -> toml::Value {
        match &item.value {
            Value::Text(text) => toml::Value::String(text.clone()),
            Value::Whole(whole) => toml::Value::Integer(*whole),
            Value::Number(number) => toml::Value::Float(*number),
            Value::Flag(flag) => toml::Value::Boolean(*flag),
            Value::List(items) => toml::Value::Array(items.iter().map(value).collect()),
            Value::Table(table) => toml::Value::Table(plain(table)),
        }
    }
    let entries = table.iter().map(|(key, item)| (key.clone(), value(item)));
    entries.collect()
}
