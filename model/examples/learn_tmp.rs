use skein_model::config::*;
use skein_model::{data, model::Model, train::Trainer};
fn main() {
    skein_model::runtime::set_threads(1);
    let args: Vec<String> = std::env::args().collect();
    let source: DataConfig = DataConfig {
        source: if args[1] == "digits" {
            Source::Digits
        } else {
            Source::FashionMnist
        },
        ..Default::default()
    };
    let d = data::load(&source, &Default::default()).unwrap();
    let goal: f64 = args[2].parse().unwrap();
    let max: u64 = args[3].parse().unwrap();
    let batch: usize = args[4].parse().unwrap();
    for lr in args[5].split(',') {
        let lr: f64 = lr.parse().unwrap();
        for seed in 0..args[6].parse().unwrap() {
            let m = Model::new(&ModelConfig::Cnn {}, d.train.input_shape(), 10, seed).unwrap();
            let mut t = Trainer::new(
                m,
                OptimiserConfig::Sgd {
                    lr,
                    momentum: 0.9,
                    weight_decay: 0.0,
                    nesterov: false,
                },
            )
            .unwrap();
            let mut g = vec![0.0; t.model().n_parameters()];
            let mut s = data::Sampler::new(&Split::All {}, d.train.labels(), seed, 0, 0).unwrap();
            let start = std::time::Instant::now();
            let mut spent = 0.0;
            let mut best: f64 = 0.0;
            let mut reached = None;
            while s.position() < max {
                let b0 = std::time::Instant::now();
                for _ in 0..(if args[1] == "digits" { 8 } else { 100 }) {
                    let rows = s.next_rows(batch);
                    if t.gradient(&d.train.batch(&rows), &mut g).is_err() {
                        println!("diverged");
                        break;
                    }
                    t.apply(&g).unwrap();
                }
                spent += b0.elapsed().as_secs_f64();
                let n = d.validation.len().min(2000);
                let e = t.evaluate(&d.validation, 0..n, 200).unwrap();
                best = best.max(e.accuracy);
                if e.accuracy >= goal {
                    reached = Some(s.position());
                    break;
                }
            }
            println!(
                "{} lr {lr} seed {seed}: reached {reached:?} best {best:.4} train {spent:.1}s ({:.2} ms/step) all {:.1}s",
                args[1],
                spent * 1e3 / (s.position() as f64 / batch as f64),
                start.elapsed().as_secs_f64()
            );
        }
    }
}
