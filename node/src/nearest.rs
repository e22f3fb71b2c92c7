//! The nearest known word to a mistyped one, for "did you mean …" in errors about job files and environment variables.

/// The word of `known` that `word` was most likely meant to be; none when nothing is close (more than a third of the
/// letters differ) or the word is absurdly long.
pub fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let letters: Vec<char> = word
        .chars()
        .flat_map(char::to_lowercase)
        .take(MAX_LETTERS + 1)
        .collect();
    if letters.is_empty() || letters.len() > MAX_LETTERS {
        return None;
    }
    let budget = (letters.len() / 3).max(1);
    known
        .into_iter()
        .map(|candidate| {
            (
                distance(
                    &letters,
                    &candidate.to_lowercase().chars().collect::<Vec<_>>(),
                ),
                candidate,
            )
        })
        .filter(|(distance, candidate)| {
            *distance <= budget || candidate.starts_with(word) && letters.len() >= 3
        })
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// Longer words are not compared: the table below is quadratic.
const MAX_LETTERS: usize = 64;

/// Insertions, deletions, replacements and swaps of neighbours that turn `a` into `b` (optimal string alignment).
fn distance(a: &[char], b: &[char]) -> usize {
    let mut before: Vec<usize> = vec![];
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for (i, &letter) in a.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, &other) in b.iter().enumerate() {
            let mut cost = (last[j] + usize::from(letter != other))
                .min(last[j + 1] + 1)
                .min(row[j] + 1);
            if i > 0 && j > 0 && letter == b[j - 1] && a[i - 1] == other {
                cost = cost.min(before[j - 1] + 1);
            }
            row.push(cost);
        }
        before = std::mem::replace(&mut last, row);
    }
    last[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mistyped_words_find_their_neighbour_and_strange_ones_find_none() {
        let known = [
            "batch",
            "optimiser",
            "accuracy",
            "fraction",
            "SKEIN_HOME",
            "lr",
        ];
        for (word, expected) in [
            ("bacth", Some("batch")),
            ("batchs", Some("batch")),
            ("optimizer", Some("optimiser")),
            ("acc", Some("accuracy")),
            ("Fraction", Some("fraction")),
            ("SKEIN_HOEM", Some("SKEIN_HOME")),
            ("rl", Some("lr")),
            ("temperature", None),
            ("", None),
        ] {
            assert_eq!(nearest(word, known), expected, "{word}");
        }
        assert_eq!(nearest(&"b".repeat(10_000), known), None);
    }
}
