//! The rules as functions from text to findings, so that each can be shown to fail on a few lines of text.

use std::collections::BTreeSet;
use std::path::Path;

use crate::source::Source;

/// A place that breaks a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Finding {
    /// The file, relative to the root of the checkout.
    pub(crate) path: String,
    /// From 1.
    pub(crate) line: usize,
    /// What stands there.
    pub(crate) what: String,
}

impl Finding {
    fn new(source: &Source, line_from_zero: usize, what: impl Into<String>) -> Self {
        Self {
            path: source.path.clone(),
            line: line_from_zero + 1,
            what: what.into(),
        }
    }
}

/// Names of packages in the output of `cargo tree --prefix none` that match a pattern; `tokio*` matches each name that
/// starts with `tokio`.
pub(crate) fn forbidden_packages(tree: &str, patterns: &[&str]) -> BTreeSet<String> {
    let names = tree
        .lines()
        .filter_map(|line| line.split_whitespace().next());
    let forbidden = names.filter(|name| {
        patterns
            .iter()
            .any(|pattern| match pattern.strip_suffix('*') {
                Some(start) => name.starts_with(start),
                None => name == pattern,
            })
    });
    forbidden.map(str::to_owned).collect()
}

/// Lines of `code` (comments and strings blanked) that hold one of `words` as whole words.
pub(crate) fn lines_with(source: &Source, code: &str, words: &[&str]) -> Vec<Finding> {
    let hits = code.lines().enumerate().flat_map(|(i, line)| {
        words
            .iter()
            .filter(move |word| has_word(line, word))
            .map(move |word| Finding::new(source, i, *word))
    });
    hits.collect()
}

fn has_word(line: &str, word: &str) -> bool {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + word.len()..].chars().next();
        let starts = !word.starts_with(is_word) || !before.is_some_and(is_word);
        let ends = !word.ends_with(is_word) || !after.is_some_and(is_word);
        starts && ends
    })
}

/// First segments below `base` that the code names: `base::x` and `base::{x, y::Z}`, with their lines from 0.
pub(crate) fn segments_below(code: &str, base: &str) -> Vec<(usize, String)> {
    let start = format!("{base}::");
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let mut found = Vec::new();
    for (at, _) in code.match_indices(&start) {
        // `$crate::x` and `mycrate::x` and `a::std::x` are other things.
        if code[..at].ends_with(|c: char| is_word(c) || c == '$' || c == ':') {
            continue;
        }
        let line_of = |at: usize| code[..at].matches('\n').count();
        let below = at + start.len();
        let rest = &code[below..];
        if !rest.starts_with('{') {
            let name: String = rest.chars().take_while(|&c| is_word(c)).collect();
            found.push((line_of(at), name));
            continue;
        }
        let (mut depth, mut expects_name) = (0, false);
        for (i, c) in rest.char_indices() {
            match c {
                '{' => (depth, expects_name) = (depth + 1, depth == 0),
                '}' if depth == 1 => break,
                '}' => depth -= 1,
                ',' => expects_name = depth == 1,
                c if is_word(c) && expects_name => {
                    let name: String = rest[i..].chars().take_while(|&c| is_word(c)).collect();
                    found.push((line_of(below + i), name));
                    expects_name = false;
                }
                _ => {}
            }
        }
    }
    found
}

/// The modules that a crate's root declares, in its order.
pub(crate) fn declared_modules(root_code: &str) -> Vec<String> {
    let declared = root_code.lines().filter_map(|line| {
        let line = line.trim_end();
        let name = line.strip_suffix(';')?;
        let (visibility, name) = name.split_once("mod ")?;
        let plain = visibility.is_empty() || visibility.starts_with("pub");
        (plain && !name.contains([' ', ':'])).then(|| name.to_owned())
    });
    declared.collect()
}

/// Places where a module names one that its crate's root lists further down. `crate_folder` is `gossip` and so on;
/// `modules` is the root's order.
pub(crate) fn upward_imports(
    crate_folder: &str,
    modules: &[String],
    source: &Source,
) -> Vec<Finding> {
    let Some(inside) = source.path.strip_prefix(&format!("{crate_folder}/src/")) else {
        return Vec::new();
    };
    let top = inside
        .split('/')
        .next()
        .unwrap_or(inside)
        .trim_end_matches(".rs");
    let Some(own) = modules.iter().position(|m| m == top) else {
        return Vec::new();
    };
    let code = source.code_without_tests();
    let mut named = segments_below(&code, "crate");
    // In the file of a top-level module itself, `super` is the crate.
    if inside == format!("{top}.rs") || inside == format!("{top}/mod.rs") {
        named.extend(segments_below(&code, "super"));
    }
    named.sort();
    let upward = named.into_iter().filter(|(_, name)| {
        modules
            .iter()
            .position(|m| m == name)
            .is_some_and(|i| i > own)
    });
    upward
        .map(|(line, name)| Finding::new(source, line, format!("`{top}` names `{name}`")))
        .collect()
}

/// A missing `//!` header.
pub(crate) fn missing_header(source: &Source) -> Vec<Finding> {
    let has_header = source
        .text
        .lines()
        .next()
        .is_some_and(|line| line.starts_with("//! "));
    if has_header {
        Vec::new()
    } else {
        vec![Finding::new(
            source,
            0,
            "the file does not begin with `//! `",
        )]
    }
}

/// More lines than `most`, the tests module not counted. A file that is nothing but tests has no limit.
pub(crate) fn too_long(source: &Source, most: usize) -> Vec<Finding> {
    if source.path.ends_with("/tests.rs") || source.path.contains("/tests/") {
        return Vec::new();
    }
    let n_tests =
        crate::source::tests_module(&source.code()).map_or(0, |(first, last)| last + 1 - first);
    let n_lines = source.text.lines().count() - n_tests;
    if n_lines <= most {
        return Vec::new();
    }
    vec![Finding::new(
        source,
        most,
        format!("{n_lines} lines without tests, at most {most}"),
    )]
}

/// Relative links of a Markdown file whose target `exists` denies.
pub(crate) fn broken_links(source: &Source, exists: impl Fn(&Path) -> bool) -> Vec<Finding> {
    let folder = Path::new(&source.path).parent().unwrap_or(Path::new(""));
    let mut found = Vec::new();
    let mut is_fenced = false;
    for (i, line) in source.text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            is_fenced = !is_fenced;
        }
        if is_fenced {
            continue;
        }
        // What stands between backticks is code: every second piece.
        let prose: Vec<&str> = line.split('`').step_by(2).collect();
        for target in prose
            .join("`")
            .split("](")
            .skip(1)
            .filter_map(|rest| rest.split(')').next())
        {
            let file = target.split('#').next().unwrap_or(target);
            let is_elsewhere = file.contains("://") || file.starts_with("mailto:");
            if !file.is_empty() && !is_elsewhere && !exists(&folder.join(file)) {
                found.push(Finding::new(
                    source,
                    i,
                    format!("the link to `{target}` leads nowhere"),
                ));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(path: &str, text: &str) -> Source {
        Source {
            path: path.to_owned(),
            text: text.to_owned(),
        }
    }

    fn lines(findings: &[Finding]) -> Vec<usize> {
        findings.iter().map(|f| f.line).collect()
    }

    #[test]
    fn a_forbidden_package_is_seen_by_name_and_by_start() {
        let tree = "skein-gossip v0.1.0 (/x)\nblake3 v1.8.7\ntokio-util v0.7\nlibp2p-core v0.4 (*)\ntchotchke v1.0\n";
        let found = forbidden_packages(tree, &["tokio*", "libp2p*", "tch", "mio"]);
        assert_eq!(
            found.into_iter().collect::<Vec<_>>(),
            ["libp2p-core", "tokio-util"]
        );
        assert!(forbidden_packages("blake3 v1\n", &["tokio*"]).is_empty());
    }

    #[test]
    fn a_word_is_found_whole_and_only_in_code() {
        let source = source(
            "a.rs",
            "// tch::Tensor\nlet x = tch::Tensor::new();\nlet y = batch::z;\nlet s = \"tch::\";\n",
        );
        assert_eq!(lines(&lines_with(&source, &source.code(), &["tch::"])), [2]);
    }

    #[test]
    fn macros_and_attributes_that_leave_work_undone_are_found() {
        let source = source(
            "a.rs",
            "fn a() { todo!() }\n#[ignore = \"slow\"]\nfn b() { my_dbg!(1); dbg!(2) }\n",
        );
        let found = lines_with(&source, &source.code(), &["todo!", "#[ignore", "dbg!"]);
        assert_eq!(lines(&found), [1, 2, 3]);
    }

    #[test]
    fn segments_are_found_alone_and_in_groups() {
        let code = "use crate::a::B;\nuse crate::{c, d::{E, f::G},\n    h as i};\n$crate::j; mycrate::k; x::crate::l\n";
        let found: Vec<_> = segments_below(code, "crate");
        let expected =
            [(0, "a"), (1, "c"), (1, "d"), (2, "h")].map(|(line, name)| (line, name.to_owned()));
        assert_eq!(found, expected);
    }

    #[test]
    fn modules_are_read_in_the_order_of_the_root() {
        let root = "pub mod ids;\nmod time;\npub(crate) mod wire;\n#[cfg(test)]\nmod fixtures;\nmod tests {\n}\nuse a::mod_x;\n";
        assert_eq!(declared_modules(root), ["ids", "time", "wire", "fixtures"]);
    }

    #[test]
    fn an_import_from_further_down_is_found() {
        let modules = ["ids", "wire", "view"].map(str::to_owned);
        let text = "use crate::ids::PeerId;\nuse crate::view::View;\nuse crate::wire::Frame;\n";
        let check = |path: &str, text: &str| {
            lines(&upward_imports("gossip", &modules, &source(path, text)))
        };
        assert_eq!(check("gossip/src/wire.rs", text), [2]);
        assert_eq!(check("gossip/src/wire/codec.rs", text), [2]);
        assert_eq!(check("gossip/src/ids.rs", text), [2, 3]);
        assert!(check("gossip/src/view.rs", text).is_empty());
        assert!(check("gossip/src/lib.rs", text).is_empty());
        assert!(check("node/src/wire.rs", text).is_empty());
    }

    #[test]
    fn super_counts_only_where_it_is_the_crate_and_tests_are_free() {
        let modules = ["ids", "view"].map(str::to_owned);
        let check = |path: &str, text: &str| {
            lines(&upward_imports("gossip", &modules, &source(path, text)))
        };
        assert_eq!(check("gossip/src/ids.rs", "use super::view;\n"), [1]);
        assert!(check("gossip/src/ids/part.rs", "use super::view;\n").is_empty());
        assert!(
            check(
                "gossip/src/ids.rs",
                "#[cfg(test)]\nmod tests {\n    use crate::view;\n}\n"
            )
            .is_empty()
        );
    }

    #[test]
    fn a_file_without_header_is_found() {
        assert_eq!(lines(&missing_header(&source("a.rs", "fn a() {}\n"))), [1]);
        assert_eq!(lines(&missing_header(&source("a.rs", ""))), [1]);
        assert!(missing_header(&source("a.rs", "//! What it is.\n")).is_empty());
    }

    #[test]
    fn a_long_file_is_found_and_its_tests_do_not_count() {
        let body = "fn a() {}\n".repeat(10);
        let tests = format!(
            "#[cfg(test)]\nmod tests {{\n{}}}\n",
            "    fn b() {}\n".repeat(50)
        );
        assert_eq!(lines(&too_long(&source("a/src/b.rs", &body), 9)), [10]);
        assert!(too_long(&source("a/src/b.rs", &(body.clone() + &tests)), 10).is_empty());
        assert!(too_long(&source("a/src/tests.rs", &body), 9).is_empty());
    }

    #[test]
    fn a_link_that_leads_nowhere_is_found() {
        let text = "[a](b.md) and [c](gone.md#x)\n[d](https://e.org/f) [g](#h)\n`[i](j.md)`\n```\n[k](l.md)\n```\n[m](n.md)\n";
        let found = broken_links(&source("docs/x.md", text), |path| {
            path == Path::new("docs/b.md")
        });
        assert_eq!(lines(&found), [1, 7]);
    }
}
