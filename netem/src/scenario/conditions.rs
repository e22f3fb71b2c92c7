//! Conditions on what nodes write, `[end]` and `[[expect]]`.

use super::error::Wrong;
use super::measure::Measure;
use super::names::Names;
use super::plan::{Comparison, Condition, End, Expectation};
use super::section::Section;

/// Keys of a comparison in `[[expect]]`.
const BOUNDS: [(&str, Comparison); 5] = [
    ("at_most", Comparison::AtMost),
    ("below", Comparison::Below),
    ("at_least", Comparison::AtLeast),
    ("above", Comparison::Above),
    ("equal", Comparison::Equal),
];

/// "WHO EVENT", "WHO EVENT.FIELD >= 100"; none if the key is absent.
pub(super) fn condition(
    section: &Section<'_>,
    key: &'static str,
    names: &Names,
) -> Result<Option<Condition>, Wrong> {
    let (Some(text), Some(item)) = (section.text(key)?, section.raw(key)) else {
        return Ok(None);
    };
    let unreadable = || {
        let fix = "write a node (or any), an event of its metrics and, if you like, what a field of it must reach: \
             \"any step.step >= 100\", \"fast-0 closed\"";
        section.wrong(key, "cannot be read", fix)
    };
    let words: Vec<&str> = text.split_whitespace().collect();
    let (who, what, bound) = match words.as_slice() {
        [who, what] => (who, what, None),
        [who, what, sign, bound] => (who, what, Some((sign, bound))),
        _ => return Err(unreadable()),
    };
    let nodes = names.one(who, &item.place, &section.path(key))?.to_vec();
    let (event, field) = match (what.split_once('.'), bound) {
        (Some((event, field)), Some((sign, bound))) => {
            let comparison = Comparison::from_sign(sign).ok_or_else(|| {
                let fix = "use one of <=, <, >=, >, ==";
                section.wrong(key, format!("{sign:?} is no comparison"), fix)
            })?;
            let bound: f64 = bound.parse().map_err(|_| unreadable())?;
            if !bound.is_finite() {
                return Err(unreadable());
            }
            (event, Some((field.to_owned(), comparison, bound)))
        }
        (None, None) => (*what, None),
        _ => return Err(unreadable()),
    };
    if event.is_empty() {
        return Err(unreadable());
    }
    Ok(Some(Condition {
        nodes,
        event: event.to_owned(),
        field,
    }))
}

/// `[end]`.
pub(super) fn end(root: &Section<'_>, names: &Names) -> Result<End, Wrong> {
    let section = root.section("end")?.ok_or_else(|| {
        let fix = "add a section [end] with after = \"300s\", the longest time it may take";
        root.missing("end", fix)
    })?;
    let after = section.required("after", section.duration("after")?, "\"300s\"")?;
    if after.is_zero() {
        return Err(section.wrong("after", "is no time at all", "write \"1s\" or more"));
    }
    let end = End {
        after,
        job: section.flag("job")?.unwrap_or(false),
        exit: section.flag("exit")?.unwrap_or(false),
        when: condition(&section, "when", names)?,
    };
    section.finish()?;
    Ok(end)
}

/// `[[expect]]`.
pub(super) fn expectations(root: &Section<'_>, names: &Names) -> Result<Vec<Expectation>, Wrong> {
    let mut expectations = vec![];
    for section in root.sections("expect")? {
        let metric = section.text("metric")?;
        let metric = section.required("metric", metric, "\"accuracy\"")?;
        let measure: Measure = metric.parse().map_err(|fault: super::MeasureFault| {
            section.wrong("metric", fault.problem, fault.fix)
        })?;
        if let (Some(node), Some(item)) = (measure.node(), section.raw("metric")) {
            names.one(node, &item.place, &section.path("metric"))?;
        }
        let before = expectations.len();
        for (key, comparison) in BOUNDS {
            if let Some(value) = section.number(key, f64::MIN..=f64::MAX)? {
                expectations.push(Expectation {
                    metric: metric.to_owned(),
                    comparison,
                    value,
                });
            }
        }
        if expectations.len() == before {
            let nothing = || {
                let fix = "add at_most, below, at_least, above or equal with a number";
                section.wrong("metric", "is compared with nothing", fix)
            };
            return Err(section.stranger().unwrap_or_else(nothing));
        }
        section.finish()?;
    }
    Ok(expectations)
}
