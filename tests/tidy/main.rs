//! Keeps the rules of the house that no compiler checks: who may depend on whom, which module may name which, what a
//! file looks like. ARCHITECTURE.md says why they hold; each failure prints the place and the reason.

#![expect(
    clippy::expect_used,
    reason = "a checkout that cannot be read has to stop the tests"
)]

mod rules;
mod source;

use std::path::{Path, PathBuf};
use std::process::Command;

use rules::Finding;
use source::{Source, files_below};

const CRATES: [&str; 6] = [
    "gossip",
    "model",
    "node",
    "netem",
    "netem/sim",
    "netem/command",
];
/// Lines of a file, tests not counted.
const MOST_LINES: usize = 450;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("tests/ lies in the checkout")
        .to_owned()
}

fn rust_files() -> Vec<Source> {
    let files = files_below(&root(), "rs").expect("the checkout can be read");
    assert!(
        files.iter().any(|f| f.path == "gossip/src/lib.rs"),
        "the checkout has no gossip/src/lib.rs"
    );
    files
}

fn is_under(source: &Source, folder: &str) -> bool {
    source.path.starts_with(&format!("{folder}/"))
}

fn assert_none(findings: &[Finding], reason: &str) {
    let listed: Vec<String> = findings
        .iter()
        .map(|f| format!("{}:{}: {}", f.path, f.line, f.what))
        .collect();
    assert!(
        findings.is_empty(),
        "\n{}\nwhy: {reason}\n",
        listed.join("\n")
    );
}

fn assert_not_in_tree(package: &str, patterns: &[&str], reason: &str) {
    let tree = Command::new(env!("CARGO"))
        .args([
            "tree",
            "--package",
            package,
            "--edges",
            "normal",
            "--prefix",
            "none",
        ])
        .current_dir(root())
        .output()
        .expect("cargo starts");
    let listing = String::from_utf8_lossy(&tree.stdout);
    assert!(
        tree.status.success(),
        "cargo tree failed: {}",
        String::from_utf8_lossy(&tree.stderr)
    );
    assert!(
        listing.starts_with(package),
        "cargo tree does not list {package}: {listing}"
    );
    let found = rules::forbidden_packages(&listing, patterns);
    assert!(
        found.is_empty(),
        "\n{package} depends on {found:?}\nwhy: {reason}\n"
    );
}

#[test]
fn gossip_depends_on_no_runtime_no_network_and_no_tensors() {
    assert_not_in_tree(
        "skein-gossip",
        &[
            "tokio*",
            "mio",
            "libp2p*",
            "tch",
            "torch-sys",
            "skein-model",
            "skein-node",
        ],
        "gossip/ decides and does nothing: it must run the same under a virtual clock and in tests without libtorch",
    );
}

#[test]
fn model_depends_on_no_network() {
    assert_not_in_tree(
        "skein-model",
        &["tokio*", "mio", "libp2p*", "skein-gossip", "skein-node"],
        "model/ trains alone as well as in a mesh; what it knows of peers would have to change with them",
    );
}

#[test]
fn only_the_net_room_names_libp2p() {
    let files = rust_files();
    // The benchmark compares with a stream of the library that has nothing of ours around it.
    let elsewhere = files
        .iter()
        .filter(|f| !is_under(f, "node/src/net") && !is_under(f, "node/benches/wire"));
    let found: Vec<_> = elsewhere
        .flat_map(|f| rules::lines_with(f, &f.code(), &["libp2p", "libp2p_stream"]))
        .collect();
    assert_none(
        &found,
        "a new version of libp2p must not reach beyond node/src/net/",
    );
}

#[test]
fn only_the_model_room_names_tensors() {
    let files = rust_files();
    let elsewhere = files.iter().filter(|f| !is_under(f, "model"));
    let found: Vec<_> = elsewhere
        .flat_map(|f| rules::lines_with(f, &f.code(), &["tch::", "use tch"]))
        .collect();
    assert_none(
        &found,
        "what crosses from model/ to node/ is plain slices; tensors panic where slices give errors",
    );
}

#[test]
fn modules_import_only_from_those_listed_above_them() {
    let files = rust_files();
    let mut found = Vec::new();
    for folder in CRATES {
        let roots = [
            format!("{folder}/src/lib.rs"),
            format!("{folder}/src/main.rs"),
        ];
        let of_roots = files.iter().filter(|f| roots.contains(&f.path));
        let modules: Vec<String> = of_roots
            .flat_map(|f| rules::declared_modules(&f.code()))
            .collect();
        found.extend(
            files
                .iter()
                .flat_map(|f| rules::upward_imports(folder, &modules, f)),
        );
    }
    assert_none(
        &found,
        "a crate's root lists its modules lowest first, so it can be read from the top down",
    );
}

#[test]
fn every_file_says_what_it_is() {
    let files = rust_files();
    let in_src = files.iter().filter(|f| f.path.contains("/src/"));
    let found: Vec<_> = in_src.flat_map(rules::missing_header).collect();
    assert_none(
        &found,
        "the header says what the file is, where its data comes from and where it goes",
    );
}

#[test]
fn no_file_is_too_long() {
    let files = rust_files();
    let in_src = files.iter().filter(|f| f.path.contains("/src/"));
    let found: Vec<_> = in_src
        .flat_map(|f| rules::too_long(f, MOST_LINES))
        .collect();
    assert_none(
        &found,
        "a file has one reason to change; one this long has several: split it by concern",
    );
}

#[test]
fn gossip_reads_no_clock_and_opens_nothing() {
    let words = [
        "Instant::now",
        "SystemTime::now",
        "HashMap",
        "HashSet",
        "thread_rng",
        "std::thread",
        "std::net",
        "std::fs",
    ];
    let files = rust_files();
    let mut found = Vec::new();
    for file in files.iter().filter(|f| is_under(f, "gossip/src")) {
        let code = file.code_without_tests();
        found.extend(rules::lines_with(file, &code, &words));
        for (line, name) in rules::segments_below(&code, "std") {
            let plain = format!("std::{name}");
            let is_listed_already = code
                .lines()
                .nth(line)
                .is_some_and(|text| text.contains(&plain));
            if words.contains(&plain.as_str()) && !is_listed_already {
                found.push(Finding {
                    path: file.path.clone(),
                    line: line + 1,
                    what: plain,
                });
            }
        }
    }
    assert_none(
        &found,
        "same inputs, same outputs, byte for byte: time and randomness are passed in, and maps have an order",
    );
}

#[test]
fn nothing_is_left_undone() {
    let found: Vec<_> = rust_files()
        .iter()
        .flat_map(|f| {
            rules::lines_with(
                f,
                &f.code(),
                &["todo!", "unimplemented!", "dbg!", "#[ignore"],
            )
        })
        .collect();
    assert_none(
        &found,
        "what is not finished is not in the repository, and every test runs",
    );
}

#[test]
fn links_in_the_documents_lead_somewhere() {
    let root = root();
    let documents = files_below(&root, "md").expect("the checkout can be read");
    let found: Vec<_> = documents
        .iter()
        .flat_map(|d| rules::broken_links(d, |path| root.join(path).exists()))
        .collect();
    assert_none(&found, "a reader who follows a link must arrive");
}
