//! How `[strategy]` is written: as a table, or as the word for its kind alone.

use std::fmt;

use serde::de::value::{MapAccessDeserializer, StrDeserializer};
use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};

use super::{Batching, Exchange, Kind, Knowledge, Pipeline, Strategy};

/// The table, with what is not written.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    kind: Option<Kind>,
    pipeline: Option<Pipeline>,
    exchange: Option<Exchange>,
    batching: Option<Batching>,
    knowledge: Option<Knowledge>,
}

impl From<Table> for Strategy {
    fn from(table: Table) -> Self {
        let exchanges =
            table.exchange.is_some() || table.batching.is_some() || table.knowledge.is_some();
        let usual = match exchanges {
            true => Kind::Exchange,
            false => Kind::Auto,
        };
        Self {
            kind: table.kind.unwrap_or(usual),
            pipeline: table.pipeline.unwrap_or_default(),
            exchange: table.exchange.unwrap_or_default(),
            batching: table.batching.unwrap_or_default(),
            knowledge: table.knowledge.unwrap_or_default(),
        }
    }
}

struct Written;

impl<'de> Visitor<'de> for Written {
    type Value = Strategy;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .write_str("a table, or \"auto\", \"exchange\", \"pipeline\", \"hybrid\" or \"tiers\"")
    }

    fn visit_str<E: Error>(self, word: &str) -> Result<Strategy, E> {
        let kind = Kind::deserialize(StrDeserializer::new(word))?;
        Ok(Strategy {
            kind,
            ..Strategy::default()
        })
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Strategy, A::Error> {
        Table::deserialize(MapAccessDeserializer::new(map)).map(Strategy::from)
    }
}

impl<'de> Deserialize<'de> for Strategy {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Written)
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::JobFile;
    use super::*;

    fn parsed(strategy: &str) -> Result<Kind, String> {
        let text =
            format!("{strategy}\n[model]\nkind = 'mlp'\n[train]\nbatch = 32\n[stop]\nsteps = 5\n");
        let job = JobFile::parse(&text);
        job.map(|job| job.strategy.kind)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn nothing_is_auto_and_settings_of_an_exchange_are_one() {
        assert_eq!(parsed(""), Ok(Kind::Auto));
        assert_eq!(parsed("strategy = 'auto'"), Ok(Kind::Auto));
        assert_eq!(parsed("strategy = 'exchange'"), Ok(Kind::Exchange));
        assert_eq!(
            parsed("[strategy.exchange]\nmost = 0.05"),
            Ok(Kind::Exchange)
        );
        assert_eq!(parsed("[strategy.knowledge]"), Ok(Kind::Exchange));
        assert_eq!(parsed("[strategy.pipeline]\ncopies = 1"), Ok(Kind::Auto));
        assert_eq!(parsed("[strategy]\nkind = 'hybrid'"), Ok(Kind::Hybrid));
        let word = parsed("strategy = 'fast'").unwrap_err();
        assert!(word.contains("fast") && word.contains("auto"), "{word}");
        let key = parsed("[strategy]\nkid = 'hybrid'").unwrap_err();
        assert!(key.contains("kid") && key.contains("kind"), "{key}");
    }
}
