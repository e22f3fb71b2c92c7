//! Byte-level BPE as GPT-2 has it (Radford et al. 2019; Sennrich et al. 2016, arXiv:1508.07909), out of a `tokenizer.json` of Hugging
//! Face's tokenizers: text is cut into words, the bytes of each are joined pair by pair, the pair that was learnt first before all others.
//!
//! Its own code and not the `tokenizers` crate: that brings sixty more, and of its many kinds GPT-2's is the one that is needed.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::path::Path;

use regex::Regex;
use serde::Deserialize;

use super::DataError;
use super::file::Input;
use crate::config::MAX_CLASSES;

/// Longest file; GPT-2's has 1.3 MB.
const MAX_BYTES: u64 = 64 << 20;
/// GPT-2's words, but for what stands at the end of spaces; see [`next_word`].
const WORDS: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+";
/// Words whose tokens are remembered.
const MAX_REMEMBERED: usize = 1 << 18;

#[derive(Deserialize)]
struct File {
    model: Model,
    pre_tokenizer: Option<PreTokenizer>,
    normalizer: Option<serde_json::Value>,
    #[serde(default)]
    added_tokens: Vec<Added>,
}

#[derive(Deserialize)]
struct Model {
    #[serde(rename = "type", default = "bpe")]
    kind: String,
    #[serde(default)]
    vocab: serde_json::Value,
    #[serde(default)]
    merges: Vec<Merge>,
    dropout: Option<f32>,
    continuing_subword_prefix: Option<String>,
    end_of_word_suffix: Option<String>,
    #[serde(default)]
    ignore_merges: bool,
}

fn bpe() -> String {
    "BPE".into()
}

/// Two tokens; older files have them in one text.
#[derive(Deserialize)]
#[serde(untagged)]
enum Merge {
    Pair(String, String),
    Text(String),
}

#[derive(Deserialize)]
struct PreTokenizer {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    add_prefix_space: bool,
    #[serde(default = "yes")]
    use_regex: bool,
}

fn yes() -> bool {
    true
}

#[derive(Deserialize)]
struct Added {
    id: u32,
    content: String,
}

/// See the module's header.
#[derive(Debug)]
pub(crate) struct Tokenizer {
    /// The token of each byte.
    bytes: [u16; 256],
    /// What a pair becomes, and how early it was learnt.
    merges: HashMap<(u16, u16), (u32, u16)>,
    /// Texts that are one token each, such as `<|endoftext|>`.
    added: Vec<(String, u16)>,
    words: Regex,
    adds_space: bool,
    n_tokens: i64,
    digest: [u8; 32],
}

impl Tokenizer {
    /// Reads a `tokenizer.json`.
    ///
    /// # Errors
    /// A file that is missing, no JSON, or of another kind of tokenizer; the key that does not suit is named.
    pub(crate) fn load(path: &Path) -> Result<Self, DataError> {
        let bytes = Input::open(path)?.rest(MAX_BYTES)?;
        Self::read(&bytes).map_err(|what| DataError::mismatch(path, what))
    }

    fn read(json: &[u8]) -> Result<Self, String> {
        let file: File = serde_json::from_slice(json).map_err(|error| {
            format!("not a tokenizer.json of Hugging Face's tokenizers: {error}")
        })?;
        let (adds_space, vocabulary) = check(&file)?;
        let id = |token: &str| {
            let id = vocabulary.get(token).copied();
            id.ok_or_else(|| format!("model.vocab lacks the token {token:?}"))
        };
        let mut bytes = [0; 256];
        for (token, letter) in bytes.iter_mut().zip(letters()) {
            *token = id(letter.encode_utf8(&mut [0; 4]))?;
        }
        let mut merges = HashMap::with_capacity(file.model.merges.len());
        for (rank, merge) in file.model.merges.iter().enumerate() {
            let (left, right) = match merge {
                Merge::Pair(left, right) => (left.as_str(), right.as_str()),
                Merge::Text(both) => both
                    .split_once(' ')
                    .ok_or_else(|| format!("model.merges: {both:?} is no pair"))?,
            };
            let joined = id(&format!("{left}{right}"))?;
            let rank = u32::try_from(rank).unwrap_or(u32::MAX);
            merges
                .entry((id(left)?, id(right)?))
                .or_insert((rank, joined));
        }
        let mut added = Vec::new();
        for token in file
            .added_tokens
            .iter()
            .filter(|token| !token.content.is_empty())
        {
            added.push((token.content.clone(), token_of(u64::from(token.id))?));
        }
        // Of two that begin at one place the longer counts.
        added.sort_by_key(|(content, _)| Reverse(content.len()));
        let all = vocabulary.values().chain(added.iter().map(|(_, id)| id));
        let n_tokens = all.max().map_or(0, |highest| i64::from(*highest) + 1);
        Ok(Self {
            bytes,
            merges,
            added,
            words: Regex::new(WORDS).map_err(|error| error.to_string())?,
            adds_space,
            n_tokens,
            digest: *blake3::hash(json).as_bytes(),
        })
    }

    /// One more than the highest token.
    pub(crate) fn n_tokens(&self) -> i64 {
        self.n_tokens
    }

    /// blake3 of the file.
    pub(crate) fn digest(&self) -> [u8; 32] {
        self.digest
    }

    /// The tokens of a text. Bytes that are no UTF-8 are tokens of their own.
    pub(crate) fn encode(&self, text: &[u8]) -> Vec<u16> {
        let mut tokens = Vec::with_capacity(text.len() / 2);
        let mut remembered = HashMap::new();
        for chunk in text.utf8_chunks() {
            self.encode_text(chunk.valid(), &mut remembered, &mut tokens);
            let strays = chunk.invalid().iter();
            tokens.extend(strays.map(|byte| self.bytes[usize::from(*byte)]));
        }
        tokens
    }

    fn encode_text<'t>(
        &self,
        mut text: &'t str,
        remembered: &mut HashMap<&'t str, Vec<u16>>,
        tokens: &mut Vec<u16>,
    ) {
        while !text.is_empty() {
            let found = self.added.iter().filter_map(|(content, id)| {
                let at = text.find(content.as_str())?;
                Some((at, content.len(), *id))
            });
            // The first of the longest: they are in that order.
            let next = found.min_by_key(|(at, ..)| *at);
            let (plain, rest) = text.split_at(next.map_or(text.len(), |(at, ..)| at));
            self.encode_plain(plain, remembered, tokens);
            let Some((_, length, id)) = next else { return };
            tokens.push(id);
            text = &rest[length..];
        }
    }

    fn encode_plain<'t>(
        &self,
        mut text: &'t str,
        remembered: &mut HashMap<&'t str, Vec<u16>>,
        tokens: &mut Vec<u16>,
    ) {
        if self.adds_space && !text.is_empty() && !text.starts_with(char::is_whitespace) {
            let (first, rest) = text.split_at(next_word(&self.words, text));
            tokens.extend(self.join(format!(" {first}").as_bytes()));
            text = rest;
        }
        while !text.is_empty() {
            let (word, rest) = text.split_at(next_word(&self.words, text));
            text = rest;
            if let Some(known) = remembered.get(word) {
                tokens.extend(known);
                continue;
            }
            let joined = self.join(word.as_bytes());
            tokens.extend(&joined);
            if remembered.len() < MAX_REMEMBERED {
                remembered.insert(word, joined);
            }
        }
    }

    /// The tokens of one word: of all neighbours that are a pair, the one learnt first is joined, the leftmost of equal ones, until
    /// there is none.
    fn join(&self, word: &[u8]) -> Vec<u16> {
        let mut tokens: Vec<Option<u16>> = word
            .iter()
            .map(|byte| Some(self.bytes[usize::from(*byte)]))
            .collect();
        let n = tokens.len();
        // Neighbours that are still there; n stands for none.
        let mut after: Vec<usize> = (1..=n).collect();
        let mut before: Vec<usize> = (0..n).map(|at| at.checked_sub(1).unwrap_or(n)).collect();
        let mut pairs = BinaryHeap::new();
        let pair = |tokens: &[Option<u16>], left: usize, right: usize| {
            let both = (tokens.get(left).copied()??, tokens.get(right).copied()??);
            let (rank, joined) = self.merges.get(&both)?;
            Some(Reverse((*rank, left, both, *joined)))
        };
        pairs.extend((1..n).filter_map(|right| pair(&tokens, right - 1, right)));
        while let Some(Reverse((_, left, both, joined))) = pairs.pop() {
            let Some(right) = after.get(left).copied().filter(|right| *right < n) else {
                continue;
            };
            if (tokens[left], tokens[right]) != (Some(both.0), Some(both.1)) {
                continue;
            }
            tokens[left] = Some(joined);
            tokens[right] = None;
            after[left] = after[right];
            if let Some(next) = before.get_mut(after[left]) {
                *next = left;
            }
            pairs.extend(pair(&tokens, before[left], left));
            pairs.extend(pair(&tokens, left, after[left]));
        }
        tokens.into_iter().flatten().collect()
    }
}

/// Whether it is a tokenizer of the one kind that is read: whether a space comes before the text, and the vocabulary.
fn check(file: &File) -> Result<(bool, HashMap<String, u16>), String> {
    let model = &file.model;
    let only = "only byte-level BPE, such as GPT-2's, is read";
    if model.kind != "BPE" {
        return Err(format!("model.type is {:?}: {only}", model.kind));
    }
    let words = file.pre_tokenizer.as_ref();
    let words = words.filter(|words| words.kind == "ByteLevel" && words.use_regex);
    let Some(words) = words else {
        let kind = file.pre_tokenizer.as_ref().map(|words| words.kind.as_str());
        return Err(format!(
            "pre_tokenizer is {:?}, or without its own words: {only}",
            kind.unwrap_or("none")
        ));
    };
    let is_set = |text: &Option<String>| text.as_ref().is_some_and(|text| !text.is_empty());
    let strange = [
        ("normalizer", file.normalizer.is_some()),
        (
            "model.dropout",
            model.dropout.is_some_and(|dropout| dropout != 0.0),
        ),
        (
            "model.continuing_subword_prefix",
            is_set(&model.continuing_subword_prefix),
        ),
        (
            "model.end_of_word_suffix",
            is_set(&model.end_of_word_suffix),
        ),
        ("model.ignore_merges", model.ignore_merges),
    ];
    if let Some((key, _)) = strange.iter().find(|(_, is_set)| *is_set) {
        return Err(format!("{key} is set: {only}"));
    }
    let Some(entries) = model.vocab.as_object() else {
        return Err(format!("model.vocab is no table of tokens: {only}"));
    };
    let entry = |(token, id): (&String, &serde_json::Value)| {
        let id = id
            .as_u64()
            .ok_or_else(|| format!("model.vocab: the number of {token:?} is {id}"))?;
        Ok((token.clone(), token_of(id)?))
    };
    let vocabulary = entries.iter().map(entry).collect::<Result<_, String>>()?;
    Ok((words.add_prefix_space, vocabulary))
}

fn token_of(id: u64) -> Result<u16, String> {
    u16::try_from(id)
        .map_err(|_| format!("a token has the number {id}; there can be {MAX_CLASSES}"))
}

/// The letter that stands for each byte in a vocabulary: itself where it can be seen, else one of those from 256 on.
fn letters() -> impl Iterator<Item = char> {
    let mut unseen = 256;
    (0..=255u8).map(move |byte| {
        if matches!(byte, 33..=126 | 161..=172 | 174..=255) {
            return char::from(byte);
        }
        unseen += 1;
        char::from_u32(unseen - 1).unwrap_or(char::REPLACEMENT_CHARACTER)
    })
}

/// Bytes of the first word of a text that is not empty. Of several spaces before a word the last belongs to that word
/// (`\s+(?!\S)` before `\s+` in GPT-2's pattern).
fn next_word(words: &Regex, text: &str) -> usize {
    let end = words.find(text).map_or(text.len(), |found| found.end());
    let word = &text[..end];
    let last = word.chars().next_back().map_or(0, char::len_utf8);
    let is_space = word.chars().all(char::is_whitespace);
    match is_space && end < text.len() && last < end {
        true => end - last,
        false => end.max(1),
    }
}

/// A small tokenizer for tests: the bytes have their own numbers, twelve pairs follow, then `<|end|>`.
#[cfg(test)]
pub(crate) fn small() -> serde_json::Value {
    let merges = [
        ("t", "h"),
        ("th", "e"),
        ("Ġ", "the"),
        ("i", "n"),
        ("Ġ", "a"),
        ("1", "2"),
        ("Ġ", "Ġ"),
        ("Ċ", "Ċ"),
        ("Ã", "¤"),
        ("in", "in"),
        ("'", "s"),
        ("h", "e"),
    ];
    let mut vocab = serde_json::Map::new();
    let tokens = letters().map(String::from);
    let joined = merges.iter().map(|(left, right)| format!("{left}{right}"));
    for (id, token) in tokens.chain(joined).enumerate() {
        vocab.insert(token, id.into());
    }
    serde_json::json!({
        "version": "1.0",
        "added_tokens": [{ "id": vocab.len(), "content": "<|end|>", "special": true }],
        "normalizer": null,
        "pre_tokenizer": { "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true },
        "model": { "type": "BPE", "dropout": null, "unk_token": null, "vocab": vocab, "merges": merges },
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(json: &serde_json::Value) -> Result<Tokenizer, String> {
        Tokenizer::read(json.to_string().as_bytes())
    }

    /// What `tokenizers` 0.23.3 (Python) makes of the same file.
    #[test]
    fn tokens_are_those_of_hugging_face() {
        let tokenizer = read(&small()).unwrap();
        assert_eq!(tokenizer.n_tokens(), 269);
        let golden: [(&str, &[u16]); 8] = [
            ("the then bathe", &[257, 258, 110, 32, 98, 97, 257]),
            (
                " the\n\n  in the inn's 1212 a",
                &[
                    258, 263, 32, 32, 259, 258, 32, 259, 110, 266, 32, 261, 261, 260,
                ],
            ),
            (
                "they'll  \n x\t\ty   ",
                &[257, 121, 39, 108, 108, 262, 10, 32, 120, 9, 9, 121, 262, 32],
            ),
            (
                "ninininin äß 東京 12½ a_b!? <|end|>the<|end|>",
                &[
                    110, 265, 265, 32, 264, 195, 159, 32, 230, 157, 177, 228, 186, 172, 32, 261,
                    194, 189, 260, 95, 98, 33, 63, 32, 268, 257, 268,
                ],
            ),
            ("  ", &[262]),
            ("\n", &[10]),
            ("a\u{a0} b", &[97, 194, 160, 32, 98]),
            (
                "İı Ⅷ x²",
                &[196, 176, 196, 177, 32, 226, 133, 167, 32, 120, 194, 178],
            ),
        ];
        for (text, tokens) in golden {
            assert_eq!(tokenizer.encode(text.as_bytes()), tokens, "{text:?}");
        }
    }

    #[test]
    fn a_space_goes_before_the_text_where_the_file_says_so() {
        let mut json = small();
        json["pre_tokenizer"]["add_prefix_space"] = true.into();
        let tokenizer = read(&json).unwrap();
        assert_eq!(tokenizer.encode(b"the the"), [258, 258]);
        assert_eq!(tokenizer.encode(b" the"), [258]);
    }

    #[test]
    fn pairs_may_be_written_in_one_text() {
        let mut json = small();
        let pairs = json["model"]["merges"].as_array().unwrap().clone();
        let texts = pairs.iter().map(|pair| {
            format!(
                "{} {}",
                pair[0].as_str().unwrap(),
                pair[1].as_str().unwrap()
            )
        });
        json["model"]["merges"] = texts.collect::<Vec<_>>().into();
        assert_eq!(read(&json).unwrap().encode(b" the"), [258]);
    }

    #[test]
    fn what_is_no_byte_level_bpe_is_refused_by_name() {
        let refused = |change: &dyn Fn(&mut serde_json::Value), words: &str| {
            let mut json = small();
            change(&mut json);
            let error = read(&json).unwrap_err();
            assert!(error.contains(words), "{error}");
        };
        refused(
            &|json| json["model"]["type"] = "WordPiece".into(),
            "model.type is \"WordPiece\"",
        );
        refused(
            &|json| json["pre_tokenizer"]["type"] = "Metaspace".into(),
            "\"Metaspace\"",
        );
        refused(
            &|json| json["pre_tokenizer"] = serde_json::Value::Null,
            "\"none\"",
        );
        refused(
            &|json| json["normalizer"] = serde_json::json!({ "type": "NFC" }),
            "normalizer is set",
        );
        refused(
            &|json| json["model"]["vocab"]["the"] = 70_000.into(),
            "the number 70000",
        );
        refused(
            &|json| json["model"]["merges"][0] = serde_json::json!(["q", "z"]),
            "lacks the token \"qz\"",
        );
        refused(
            &|json| {
                json["model"]["vocab"].as_object_mut().unwrap().remove("A");
            },
            "lacks the token \"A\"",
        );
        assert!(
            Tokenizer::read(b"{}")
                .unwrap_err()
                .contains("not a tokenizer.json")
        );
    }

    proptest! {
        #[test]
        fn the_tokens_of_any_bytes_spell_them(bytes in proptest::collection::vec(any::<u8>(), 0..300), words in "[ thein'12\n]{0,200}") {
            let json = small();
            let tokenizer = read(&json).unwrap();
            let letters: HashMap<char, u8> = letters().zip(0..=255).collect();
            let mut spelt: HashMap<u16, Vec<u8>> = HashMap::new();
            for (token, id) in json["model"]["vocab"].as_object().unwrap() {
                let bytes = token.chars().map(|letter| letters[&letter]).collect();
                spelt.insert(id.as_u64().unwrap() as u16, bytes);
            }
            spelt.insert(268, b"<|end|>".to_vec());
            for text in [bytes.as_slice(), words.as_bytes()] {
                let tokens = tokenizer.encode(text);
                let back: Vec<u8> = tokens.iter().flat_map(|token| spelt[token].clone()).collect();
                prop_assert_eq!(&back, text);
            }
        }
    }
}
