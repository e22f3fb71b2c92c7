fn main() {
    let path = std::env::args().nth(1).unwrap();
    let campaign = skein_netem::scenario::load(std::path::Path::new(&path), &[], None)
        .unwrap_or_else(|e| panic!("{e}"));
    for scenario in &campaign.variants {
        let record = skein_netem::sim::run(scenario, &mut |t, line| eprintln!("{t:.1} {line}"))
            .unwrap_or_else(|e| panic!("{e}"));
        println!(
            "{} {} hash {:?} speed {:?} dur {}",
            record.scenario, record.variant, record.trace_hash, record.speed, record.duration_s
        );
        for node in record.nodes.iter().take(6) {
            let count = |e: &str| node.metrics.iter().filter(|m| m.event == e).count();
            let last = node.metrics.iter().rev().find(|m| m.event == "evaluated");
            println!(
                "{} steps {} views {} closed {} {:?}",
                node.name,
                count("step"),
                count("view"),
                count("closed"),
                last.map(|m| (m.t, m.number("val_accuracy")))
            );
        }
        let first = record
            .nodes
            .iter()
            .flat_map(|n| &n.metrics)
            .filter(|m| m.event == "evaluated" && m.number("val_accuracy") >= Some(0.8))
            .map(|m| m.t)
            .fold(f64::MAX, f64::min);
        let bytes: u64 = record
            .traffic
            .last()
            .map_or(0, |t| t.pairs.iter().map(|p| p.bytes).sum());
        println!(
            "t80 {first} bytes {bytes} metrics {}",
            record.nodes.iter().map(|n| n.metrics.len()).sum::<usize>()
        );
    }
}
