//! The files of the checkout, and their text with comments, strings or tests blanked out.
//!
//! Blanking keeps every line where it is, so that what a rule finds has the line number of the file.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// One file of the checkout.
#[derive(Debug, Clone)]
pub(crate) struct Source {
    /// Relative to the root of the checkout, with `/`.
    pub(crate) path: String,
    /// Its whole text.
    pub(crate) text: String,
}

impl Source {
    /// The text with comments and string contents blanked.
    pub(crate) fn code(&self) -> String {
        code_of(&self.text)
    }

    /// As [`Source::code`], with the tests module blanked too.
    pub(crate) fn code_without_tests(&self) -> String {
        let code = self.code();
        match tests_module(&code) {
            Some((first, last)) => blank_lines(&code, first, last),
            None => code,
        }
    }
}

/// All files below `root` whose name ends in `.extension`, in order of their paths. What is built, fetched or hidden
/// is left out.
pub(crate) fn files_below(root: &Path, extension: &str) -> io::Result<Vec<Source>> {
    let mut paths = Vec::new();
    collect(root, root, &mut paths)?;
    paths.retain(|path| path.extension().is_some_and(|e| e == extension));
    paths.sort();
    paths
        .into_iter()
        .map(|path| {
            let text = fs::read_to_string(&path)?;
            let path = path
                .strip_prefix(root)
                .unwrap_or(&path)
                .to_string_lossy()
                .replace('\\', "/");
            Ok(Source { path, text })
        })
        .collect()
}

fn collect(root: &Path, folder: &Path, into: &mut Vec<PathBuf>) -> io::Result<()> {
    // Cargo marks its build folders with this file, whatever they are called.
    if folder.join("CACHEDIR.TAG").exists() {
        return Ok(());
    }
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let made_here = folder == root && ["dist", "demo", "target"].contains(&name.as_ref());
        if entry.file_type()?.is_dir() {
            if !name.starts_with('.') && !made_here {
                collect(root, &entry.path(), into)?;
            }
        } else {
            into.push(entry.path());
        }
    }
    Ok(())
}

/// First and last line (from 0) of the `#[cfg(test)] mod tests { … }` at the left margin of blanked code.
pub(crate) fn tests_module(code: &str) -> Option<(usize, usize)> {
    let lines: Vec<&str> = code.lines().collect();
    let mut first = 0;
    while first < lines.len() {
        if lines[first].starts_with("#[cfg(test)]") {
            let opens = (first + 1..lines.len())
                .find(|&i| !lines[i].starts_with("#[") && !lines[i].trim().is_empty())?;
            if lines[opens].starts_with("mod tests {") {
                let closes = (opens..lines.len()).find(|&i| lines[i].starts_with('}'));
                return Some((first, closes.unwrap_or(lines.len() - 1)));
            }
        }
        first += 1;
    }
    None
}

fn blank_lines(code: &str, first: usize, last: usize) -> String {
    let keep = |(i, line)| {
        if (first..=last).contains(&i) {
            ""
        } else {
            line
        }
    };
    code.lines()
        .enumerate()
        .map(keep)
        .collect::<Vec<_>>()
        .join("\n")
}

/// Rust source with comments and the contents of strings and character literals blanked.
pub(crate) fn code_of(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let mut code = String::with_capacity(text.len());
    let mut at = 0;
    while at < chars.len() {
        let end = match (chars[at], chars.get(at + 1)) {
            ('/', Some('/')) => end_of_line(&chars, at),
            ('/', Some('*')) => end_of_block_comment(&chars, at),
            ('"', _) => end_of_string(&chars, at),
            ('r', Some('"' | '#')) if !continues_a_word(&chars, at) => {
                match end_of_raw_string(&chars, at) {
                    Some(end) => end,
                    None => at,
                }
            }
            ('\'', _) => end_of_char(&chars, at),
            _ => at,
        };
        if end == at {
            code.push(chars[at]);
            at += 1;
        } else {
            code.extend(
                chars[at..end]
                    .iter()
                    .map(|&c| if c == '\n' { '\n' } else { ' ' }),
            );
            at = end;
        }
    }
    code
}

/// Whether the character before `at` makes it part of a longer word (`for"`); a `b` alone is a byte string's prefix.
fn continues_a_word(chars: &[char], at: usize) -> bool {
    let is_word = |i: usize| chars[i].is_alphanumeric() || chars[i] == '_';
    match at.checked_sub(1) {
        None => false,
        Some(before) if chars[before] == 'b' => before.checked_sub(1).is_some_and(is_word),
        Some(before) => is_word(before),
    }
}

fn end_of_line(chars: &[char], at: usize) -> usize {
    (at..chars.len())
        .find(|&i| chars[i] == '\n')
        .unwrap_or(chars.len())
}

fn end_of_block_comment(chars: &[char], at: usize) -> usize {
    let mut depth = 0;
    let mut i = at;
    while i < chars.len() {
        match (chars[i], chars.get(i + 1)) {
            ('/', Some('*')) => (depth, i) = (depth + 1, i + 2),
            ('*', Some('/')) => {
                (depth, i) = (depth - 1, i + 2);
                if depth == 0 {
                    return i;
                }
            }
            _ => i += 1,
        }
    }
    chars.len()
}

fn end_of_string(chars: &[char], at: usize) -> usize {
    let mut i = at + 1;
    while i < chars.len() {
        match chars[i] {
            '\\' => i += 2,
            '"' => return i + 1,
            _ => i += 1,
        }
    }
    chars.len()
}

/// `None` when it is no raw string but a raw name (`r#type`).
fn end_of_raw_string(chars: &[char], at: usize) -> Option<usize> {
    let n_hashes = chars[at + 1..].iter().take_while(|&&c| c == '#').count();
    let opens = at + 1 + n_hashes;
    if chars.get(opens) != Some(&'"') {
        return None;
    }
    let closes = |&i: &usize| {
        chars[i] == '"'
            && chars.len() > i + n_hashes
            && chars[i + 1..=i + n_hashes].iter().all(|&c| c == '#')
    };
    Some(
        (opens + 1..chars.len())
            .find(closes)
            .map_or(chars.len(), |i| i + 1 + n_hashes),
    )
}

/// `at` itself when it is a lifetime and no character literal.
fn end_of_char(chars: &[char], at: usize) -> usize {
    match (chars.get(at + 1), chars.get(at + 2)) {
        (Some('\\'), Some(_)) => (at + 3..chars.len())
            .find(|&i| chars[i] == '\'')
            .map_or(chars.len(), |i| i + 1),
        (Some(_), Some('\'')) => at + 3,
        _ => at,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_strings_are_blanked_and_lines_stay() {
        let text =
            "a // tch::x\n/* one /* two */ three */ b\nc(\"d \\\" e\", r#\"f \" g\"#, b\"h\")\n";
        let code = code_of(text);
        assert_eq!(code.lines().count(), 3);
        let words: Vec<&str> = code
            .split(|c: char| !c.is_alphanumeric())
            .filter(|w| !w.is_empty())
            .collect();
        // The `b` of a byte string stays; the `r` of a raw one goes with it.
        assert_eq!(words, ["a", "b", "c", "b"]);
    }

    #[test]
    fn a_string_over_several_lines_keeps_its_lines() {
        assert_eq!(code_of("x(\"a\nb\")\ny"), "x(  \n  )\ny");
    }

    #[test]
    fn lifetimes_and_raw_names_are_code_and_characters_are_not() {
        assert_eq!(code_of("&'a str"), "&'a str");
        assert_eq!(code_of("r#type for\"x\""), "r#type for   ");
        assert_eq!(code_of("['\"', '\\'', 'x'] \"y\""), "[   ,     ,    ]    ");
    }

    #[test]
    fn the_tests_module_is_found_with_attributes_between() {
        let code = "fn a() {}\n\n#[cfg(test)]\n#[expect(dead_code)]\nmod tests {\n    fn b() {}\n}\nfn c() {}\n";
        assert_eq!(tests_module(code), Some((2, 6)));
        let source = Source {
            path: String::new(),
            text: code.to_owned(),
        };
        assert_eq!(
            source.code_without_tests(),
            "fn a() {}\n\n\n\n\n\n\nfn c() {}"
        );
    }

    #[test]
    fn a_brace_in_a_string_does_not_end_the_tests_module() {
        let source = Source {
            path: String::new(),
            text: "#[cfg(test)]\nmod tests {\n    const A: &str = \"\n}\n\";\n    use tch::x;\n}\n"
                .to_owned(),
        };
        assert!(!source.code_without_tests().contains("tch"));
    }

    #[test]
    fn a_helper_for_tests_alone_is_no_tests_module() {
        assert_eq!(tests_module("#[cfg(test)]\nfn helper() {}\n"), None);
    }
}
