//! Whole files: what they become, and what their faults say.

use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::scenario::{Action, Comparison, Condition, When};

const SMALL: &str = r#"
name = "small"
about = "for tests"
[job]
strategy.exchange.waiting = "never"
[[node]]
name = "fast"
count = 2
cpu = 0.4
link = "dsl"
up = { rate = "5M" }
[[node]]
name = "slow"
program = ["python3", "x.py"]
start = "never"
[end]
after = "60s"
"#;

fn read(text: &str, overrides: &[(&str, &str)]) -> Result<Campaign, String> {
    let mut sources = vec![Source {
        name: "test.toml".into(),
        text: text.to_owned(),
    }];
    let overrides: Vec<_> = overrides
        .iter()
        .map(|(path, value)| (path.to_string(), value.to_string()))
        .collect();
    parse(&mut sources, Path::new("."), &overrides).map_err(|error| error.to_string())
}

/// The only variant of [`SMALL`] and what is added to it.
fn with(more: &str) -> Result<Scenario, String> {
    let mut campaign = read(&format!("{SMALL}{more}"), &[])?;
    campaign.variants.pop().ok_or_else(String::new)
}

#[test]
fn data_is_looked_for_from_the_scenarios_folder() -> Result<(), Box<dyn std::error::Error>> {
    let more = "[job.data]\nsource = \"text\"\npath = \"texts/a.txt\"";
    let campaign = read(&format!("{SMALL}{more}"), &[])?;
    let job = campaign.variants[0].job.clone().unwrap_or_default();
    let job: toml::Table = job.parse()?;
    let path = job["data"]["path"].as_str().unwrap_or_default();
    assert!(
        Path::new(path).is_absolute() && path.ends_with("texts/a.txt"),
        "{path}"
    );
    Ok(())
}

#[test]
fn a_count_becomes_nodes_with_ranks_and_the_preset_fills_the_line() -> Result<(), String> {
    let scenario = with("")?;
    let names: Vec<_> = scenario.nodes.iter().map(|node| &*node.name).collect();
    assert_eq!(names, ["fast-0", "fast-1", "slow"]);
    let fast = &scenario.nodes[1];
    assert_eq!((fast.group.as_str(), fast.cpu), ("fast", Some(0.4)));
    assert_eq!(fast.up.profile.rate, Some(5_000_000));
    assert_eq!(fast.up.profile.delay, Duration::from_millis(8));
    assert_eq!(fast.down.profile.rate, Some(50_000_000));
    let slow = &scenario.nodes[2];
    assert_eq!(slow.start, None);
    let words = ["python3", "x.py"].map(String::from).to_vec();
    assert_eq!(slow.program, Program::Command(words));
    assert_eq!((scenario.seed, scenario.repeat), (1, 1));
    assert_eq!(
        scenario.job.as_deref(),
        Some("[strategy.exchange]\nwaiting = \"never\"\n")
    );
    Ok(())
}

#[test]
fn links_name_nodes_groups_and_all() -> Result<(), String> {
    let scenario = with(
        "[[link]]\nfrom = \"*\"\nto = \"*\"\ndelay = \"1ms\"\n\
         [[link]]\nfrom = \"fast\"\nto = \"slow\"\ndelay = \"20ms\"\nloss = 0.5",
    )?;
    let delays: Vec<_> = scenario
        .pairs
        .iter()
        .map(|pair| (pair.from, pair.to, pair.line.profile.delay.as_millis()))
        .collect();
    let expected = [
        (0, 1, 1),
        (0, 2, 20),
        (1, 0, 1),
        (1, 2, 20),
        (2, 0, 1),
        (2, 1, 1),
    ];
    assert_eq!(delays, expected);
    Ok(())
}

#[test]
fn events_say_when_and_what() -> Result<(), String> {
    let scenario = with(
        "[[event]]\nat = \"4s\"\nkill = \"fast-0\"\n\
         [[event]]\nevery = \"5s\"\nuntil = \"30s\"\nrestart = [\"fast\", \"slow\"]\n\
         [[event]]\nwhen = \"fast step.step >= 100\"\nafter = \"2s\"\npartition = [[\"fast-0\"], [\"slow\"]]\n\
         [[event]]\nwhen = \"any closed\"\nheal = true\n\
         [[event]]\nat = \"9s\"\nset_line = { node = \"*\", down = { rate = \"1M\" } }\n\
         [[event]]\nat = \"9s\"\nset_cpu = { node = \"fast\", share = 0.1 }",
    )?;
    let seconds = Duration::from_secs;
    let step = ("step".to_owned(), Comparison::AtLeast, 100.0);
    let when = |nodes, event: &str, field| Condition {
        nodes,
        event: event.to_owned(),
        field,
    };
    let every = When::Every {
        from: seconds(5),
        until: seconds(30),
        period: seconds(5),
    };
    let expected = [
        (When::At(seconds(4)), Action::Kill(vec![0])),
        (every, Action::Restart(vec![0, 1, 2])),
        (
            When::After(when(vec![0, 1], "step", Some(step)), seconds(2)),
            Action::Partition(vec![vec![0], vec![2]]),
        ),
        (
            When::After(when(vec![0, 1, 2], "closed", None), seconds(0)),
            Action::Heal,
        ),
    ];
    for (event, (when, action)) in scenario.events.iter().zip(expected) {
        assert_eq!((&event.when, &event.action), (&when, &action));
    }
    // Nodes that start with other lines get actions of their own: what is not set stays.
    let delays: Vec<_> = scenario.events[4..6]
        .iter()
        .map(|event| match &event.action {
            Action::SetLine { nodes, up, down } => (
                nodes.clone(),
                up.is_none(),
                down.map(|down| down.delay.as_millis()),
            ),
            _ => (vec![], false, None),
        })
        .collect();
    assert_eq!(
        delays,
        [(vec![0, 1], true, Some(8)), (vec![2], true, Some(0))]
    );
    assert_eq!(scenario.events.len(), 7);
    Ok(())
}

#[test]
fn variants_and_sweeps_multiply_and_overrides_win() -> Result<(), String> {
    let more = "[variants.sync]\n\"job.strategy.exchange.waiting\" = \"all\"\n[variants.async]\n\
                [variants.small.node.fast]\ncpu = 0.3\n[sweep]\n\"node.*.cpu\" = [0.1, 0.2]\n";
    let campaign = read(
        &format!("{SMALL}{more}"),
        &[("node.slow.cpu", "0.5"), ("end.after", "9s")],
    )?;
    let of = |scenario: &Scenario| {
        let cpu: Vec<_> = scenario.nodes.iter().filter_map(|node| node.cpu).collect();
        let sync = scenario
            .job
            .as_ref()
            .is_some_and(|job| job.contains("\"all\""));
        assert_eq!(scenario.end.after, Duration::from_secs(9));
        (scenario.variant.clone(), cpu, sync)
    };
    let variants: Vec<_> = campaign.variants.iter().map(of).collect();
    let expected = [
        ("sync,node.all.cpu=0.1", vec![0.1, 0.1, 0.5], true),
        ("sync,node.all.cpu=0.2", vec![0.2, 0.2, 0.5], true),
        ("async,node.all.cpu=0.1", vec![0.1, 0.1, 0.5], false),
        ("async,node.all.cpu=0.2", vec![0.2, 0.2, 0.5], false),
        ("small,node.all.cpu=0.1", vec![0.1, 0.1, 0.5], false),
        ("small,node.all.cpu=0.2", vec![0.2, 0.2, 0.5], false),
    ];
    assert_eq!(
        variants,
        expected.map(|(name, cpu, sync)| (name.to_owned(), cpu, sync))
    );
    Ok(())
}

#[test]
fn a_fault_shows_its_line_with_a_marker_below_and_the_fix() {
    let text = SMALL.replace("cpu = 0.4", "cpuu = 0.4");
    let expected = "test.toml line 9, column 1: node.fast.cpuu: unknown key\n 9 | cpuu = 0.4\n   | ^^^^\nfix: did you mean `cpu`?";
    assert_eq!(read(&text, &[]), Err(expected.to_owned()));
}

#[test]
fn faults_name_the_key_and_the_fix() {
    let before = SMALL.trim_start().lines().count();
    let mut missed = vec![];
    for (more, line, key, fix) in [
        (
            "[[nodes]]\nname = \"x\"",
            1,
            "nodes",
            "did you mean `node`?",
        ),
        (
            "[[node]]\nnmae = \"x\"",
            2,
            "node.2.nmae",
            "did you mean `name`?",
        ),
        (
            "[[node]]\nname = \"fast\"",
            2,
            "node.fast.name",
            "give each [[node]] a name",
        ),
        (
            "[[node]]\nname = \"fast-0\"",
            2,
            "node.fast-0.name",
            "give each [[node]] a name",
        ),
        (
            "[[node]]\nname = \"x\"\ncount = 3000",
            3,
            "node.x.count",
            "from 1 to 2048",
        ),
        (
            "[[node]]\nname = \"x\"\nlink = \"dls\"",
            3,
            "node.x.link",
            "did you mean `dsl`?",
        ),
        (
            "[[node]]\nname = \"x\"\nup = { rate = \"fast\" }",
            3,
            "node.x.up.rate",
            "\"50M\"",
        ),
        (
            "[[node]]\nname = \"x\"\nup = { rate = 50 }",
            3,
            "node.x.up.rate",
            "\"50M\"",
        ),
        (
            "[[node]]\nname = \"x\"\nup = { loss = 1.5 }",
            3,
            "node.x.up.loss",
            "from 0 to 1",
        ),
        (
            "[[node]]\nname = \"x\"\nup = { loss = 0.9, burst = 2 }",
            3,
            "node.x.up.burst",
            "longer",
        ),
        (
            "[[node]]\nname = \"x\"\nup = { trace = \"no.csv\" }",
            3,
            "node.x.up.trace",
            "CSV",
        ),
        ("[[node]]\nname = \"x\"\ncpu = nan", 3, "", "finite"),
        (
            "[[node]]\nname = \"x\"\nstart = 5",
            3,
            "node.x.start",
            "double quotes",
        ),
        (
            "[[link]]\nfrom = \"fast\"\nto = \"slwo\"",
            3,
            "link.0.to",
            "did you mean `slow`?",
        ),
        (
            "[[link]]\nfrom = \"slow\"\nto = \"slow\"",
            3,
            "link.0.to",
            "two different",
        ),
        ("[[event]]\nkill = \"fast\"", 1, "event.0.at", "add at ="),
        (
            "[[event]]\nat = \"1s\"\nkil = \"fast\"",
            3,
            "event.0.kil",
            "did you mean `kill`?",
        ),
        ("[[event]]\nat = \"1s\"", 2, "event.0.at", "add one of kill"),
        (
            "[[event]]\nat = \"1s\"\nkill = \"fast\"\nstop = \"slow\"",
            4,
            "event.0.stop",
            "one [[event]] for each",
        ),
        (
            "[[event]]\nwhen = \"fast step.step 3\"\nheal = true",
            2,
            "event.0.when",
            "any step.step >= 100",
        ),
        (
            "[[event]]\nat = \"1s\"\npartition = [[\"fast\"], [\"fast-1\"]]",
            3,
            "event.0.partition",
            "write lists",
        ),
        (
            "[[event]]\nevery = \"1s\"\nset_line = { node = \"*\", up = { loss = 0.1 } }",
            3,
            "event.0.set_line.node",
            "every number",
        ),
        (
            "[[expect]]\nmetric = \"acuracy\"\nat_least = 1",
            2,
            "expect.0.metric",
            "did you mean `accuracy`?",
        ),
        (
            "[[expect]]\nmetric = \"steps@fsat\"\nat_least = 1",
            2,
            "expect.0.metric",
            "did you mean `fast`?",
        ),
        (
            "[[expect]]\nmetric = \"steps\"\natleast = 1",
            3,
            "expect.0.atleast",
            "did you mean `at_least`?",
        ),
        (
            "[variants.a]\n\"node.fats.cpu\" = 1",
            2,
            "node.fats.cpu",
            "did you mean `fast`?",
        ),
        (
            "[variants.a]\n\"node.fast.cpu\" = -1",
            2,
            "node.fast.cpu",
            "from 0.001 to 1024",
        ),
        (
            "[sweep]\n\"node.fast.cpu\" = 1",
            2,
            "sweep.node.fast.cpu",
            "write a list",
        ),
        ("[sim]\nproblem = \"toy\"", 2, "sim.problem", "{ toy = 16 }"),
        ("[end]", 1, "", "key = value"),
    ] {
        let mut sources = vec![Source {
            name: String::new(),
            text: format!("{}{more}", SMALL.trim_start()),
        }];
        let error = parse(&mut sources, Path::new("."), &[]).err();
        let fault = error.as_ref().and_then(ScenarioError::fault);
        let found = fault.map(|fault| (fault.line, fault.key.as_str(), fault.fix.contains(fix)));
        if found != Some((before + line, key, true)) {
            missed.push(format!("{more}\n{error:?}"));
        }
    }
    assert!(missed.is_empty(), "{}", missed.join("\n\n"));
}

#[test]
fn a_fault_of_an_override_shows_the_override() {
    let fault = read(SMALL, &[("node.fast.cpu", "lots")]);
    let expected = "--set line 1, column 1: node.fast.cpu: is a text\n 1 | node.fast.cpu=lots\n   | ^^^^^^^^^^^^^^^^^^\nfix: write a number, such as 0.5";
    assert_eq!(fault, Err(expected.to_owned()));
}

#[test]
fn every_shipped_scenario_is_one() -> Result<(), String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios");
    let mut loaded = 0;
    for entry in std::fs::read_dir(folder).map_err(|error| error.to_string())? {
        let path = entry.map_err(|error| error.to_string())?.path();
        if path.extension().is_some_and(|ext| ext == "toml") {
            let campaign = load(&path, &[], None).map_err(|error| error.to_string())?;
            assert_eq!(path.file_stem(), Some(campaign.name.as_ref()));
            loaded += 1;
        }
    }
    assert!(loaded > 0);
    Ok(())
}

#[test]
fn a_deep_text_is_an_error_and_no_overflow() {
    let deep = 200_000;
    for text in [
        format!("a{} = 1", ".a".repeat(deep)),
        format!("a = {}", "[".repeat(deep)),
        format!("a = {}", "{a=".repeat(deep)),
        format!("[a{}]", ".a".repeat(deep)),
    ] {
        assert!(read(&text, &[]).is_err());
        let _ = read(SMALL, &[("job.x", &text)]);
    }
    assert!(read(SMALL, &[(&"job.".repeat(deep), "1")]).is_err());
}

/// Key and fix of the fault of [`SMALL`] with what is added to it.
fn fault(more: &str) -> (String, String) {
    let mut sources = vec![Source {
        name: String::new(),
        text: format!("{SMALL}{more}"),
    }];
    let error = parse(&mut sources, Path::new("."), &[]).err();
    let fault = error.as_ref().and_then(ScenarioError::fault);
    fault.map_or_else(Default::default, |fault| {
        assert!(fault.line > 1, "{fault}");
        (fault.key.clone(), fault.fix.clone())
    })
}

#[test]
fn what_would_never_end_or_never_happen_is_refused() {
    let mut missed = vec![];
    for (more, key, fix) in [
        (
            "[sim]\nus_per_sample = 0\nus_per_step = 0",
            "sim.us_per_sample",
            "1 or more",
        ),
        (
            "[sim]\nus_per_sample = 1e-9",
            "sim.us_per_sample",
            "1 or more",
        ),
        (
            "[[event]]\nevery = \"99ms\"\nheal = true",
            "event.0.every",
            "\"100ms\" or more",
        ),
        (
            "[[event]]\nevery = \"5s\"\nfrom = \"20s\"\nuntil = \"10s\"\nheal = true",
            "event.0.until",
            "`from`",
        ),
        (
            "[[event]]\nevery = \"5s\"\nuntil = \"4s\"\nheal = true",
            "event.0.until",
            "the period",
        ),
        (
            "[[event]]\nevery = \"5s\"\nfrom = \"61s\"\nheal = true",
            "event.0.from",
            "end.after",
        ),
        (
            "[[event]]\nat = \"61s\"\nheal = true",
            "event.0.at",
            "end.after",
        ),
    ] {
        let found = fault(more);
        if found.0 != key || !found.1.contains(fix) {
            missed.push((more, found));
        }
    }
    assert!(missed.is_empty(), "{missed:#?}");
    for fine in [
        "[sim]\nus_per_sample = 0\nus_per_step = 1",
        "[[event]]\nat = \"60s\"\nheal = true",
        "[[event]]\nevery = \"100ms\"\nfrom = \"60s\"\nheal = true",
    ] {
        assert_eq!(with(fine).map(|_| ()), Ok(()), "{fine}");
    }
}

#[test]
fn what_would_need_much_memory_is_refused() {
    let nodes = "[[node]]\nname = \"many\"\ncount = 400\nprogram = \"true\"\n";
    let pairs =
        "[[event]]\nat = \"1s\"\nset_pair = { from = \"many\", to = \"many\", loss = 0.5 }\n";
    let all = "[[event]]\nat = \"1s\"\nkill = \"many\"\n".repeat(11_000);
    for (more, expected) in [
        (format!("{nodes}{pairs}"), "event.0.set_pair.to"),
        (format!("{nodes}{all}"), "event"),
    ] {
        let (key, fix) = fault(&more);
        assert_eq!(key, expected);
        assert!(fix.contains("groups spelled out"), "{fix}");
    }
    let env = |count: usize, bytes: usize| {
        let text = "x".repeat(bytes);
        format!(
            "[[node]]\nname = \"e\"\ncount = {count}\nprogram = \"true\"\nenv = {{ A = \"{text}\" }}"
        )
    };
    for more in [env(1, 65_537), env(100, 60_000)] {
        let (key, fix) = fault(&more);
        assert_eq!(key, "node.e.env");
        assert!(fix.contains("into a file"), "{fix}");
    }
    assert_eq!(with(&env(60, 60_000)).map(|_| ()), Ok(()));
}

#[test]
fn lines_and_variants_share_a_trace() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    std::fs::write(folder.path().join("t.csv"), "0,1e6\n1,2e6\n")?;
    let more = "[[link]]\nfrom = \"*\"\nto = \"*\"\ntrace = \"t.csv\"\n\
                [variants.a]\n[variants.b.node.slow]\nup = { trace = \"./t.csv\" }";
    let file = folder.path().join("x.toml");
    std::fs::write(&file, format!("{SMALL}{more}"))?;
    let campaign = load(&file, &[], None)?;
    let lines = campaign.variants.iter().flat_map(|scenario| {
        let own = scenario.nodes.iter().map(|node| &node.up);
        own.chain(scenario.pairs.iter().map(|pair| &pair.line))
    });
    let traces: Vec<_> = lines.filter_map(|line| line.trace.as_ref()).collect();
    assert_eq!(traces.len(), 13);
    assert!(
        traces
            .iter()
            .all(|trace| std::sync::Arc::ptr_eq(trace, traces[0]))
    );
    Ok(())
}

#[test]
fn variants_have_names_of_their_own_that_are_names_of_folders() -> Result<(), String> {
    for list in ["[0.5, 1, 0.5]", "[1, 1.0]"] {
        let (key, fix) = fault(&format!("[sweep]\n\"node.fast.cpu\" = {list}"));
        assert_eq!(key, "sweep.node.fast.cpu");
        assert!(fix.contains("once"), "{fix}");
    }
    let long = "x".repeat(90);
    let more = format!("[sweep]\n\"job.{long}\" = [0.1, 0.2]\n\"job.a/é b\" = [1, 2]");
    let campaign = read(&format!("{SMALL}{more}"), &[])?;
    let mut names: Vec<_> = campaign.variants.iter().map(|of| &of.variant).collect();
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.=,~".contains(c);
    assert!(
        names
            .iter()
            .all(|name| name.len() <= 100 && name.chars().all(plain)),
        "{names:?}"
    );
    names.dedup();
    assert_eq!(names.len(), 4, "{names:?}");
    let campaign = read(&format!("{SMALL}[sweep]\n\"job.a/b\" = [1]"), &[])?;
    assert_eq!(campaign.variants[0].variant, "job.a-b=1");
    Ok(())
}

#[test]
fn a_line_that_loses_all_or_has_no_bursts_may_have_a_preset_with_bursts() -> Result<(), String> {
    let node = |up: &str| format!("[[node]]\nname = \"w\"\nlink = \"wifi\"\nup = {{ {up} }}");
    let burst = |up: &str| Ok::<_, String>(with(&node(up))?.nodes[3].up.profile.burst);
    assert_eq!(burst("loss = 1.0")?, Some(3.0));
    assert_eq!(burst("burst = \"none\"")?, None);
    assert_eq!(fault(&node("burst = \"some\"")).0, "node.w.up.burst");
    Ok(())
}

#[test]
fn a_fault_inside_of_an_overrides_value_is_marked_there() {
    let fault = read(SMALL, &[("node.slow.program", "[\"a\", 3]")]);
    let expected = "--set line 1, column 25: node.slow.program: holds a number\n 1 | node.slow.program=[\"a\", 3]\n   |                         ^\nfix: write texts in double quotes";
    assert_eq!(fault, Err(expected.to_owned()));
}

proptest! {
    #[test]
    fn any_text_is_a_campaign_or_an_error(text in "[ -~\n]{0,300}") {
        let _ = read(&text, &[]);
        let _ = read(&format!("{SMALL}{text}"), &[]);
    }

    #[test]
    fn any_setting_is_a_campaign_or_an_error(
        path in "(job|node|link|event|end|expect|sim|name|seed|variants|sweep)(\\.(fast|\\*|0|cpu|at|up|rate|after)){0,3}",
        value in "[ -~]{0,20}|[0-9e.+-]{1,30}|\\[.{0,9}\\]",
    ) {
        let _ = read(SMALL, &[(&path, &value)]);
    }

    #[test]
    fn a_file_with_a_piece_missing_is_a_campaign_or_an_error(from in 0usize..300, length in 0usize..40) {
        let lan = include_str!("../../../scenarios/lan-4.toml");
        let kept = |(at, c): (usize, char)| (at < from || at >= from + length).then_some(c);
        let _ = read(&lan.char_indices().filter_map(kept).collect::<String>(), &[]);
    }
}
