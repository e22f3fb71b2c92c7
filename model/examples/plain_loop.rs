//! The cnn trained by a plain libtorch loop, as somebody would write it without Skein: what the whole machinery is
//! measured against (`examples/overhead.py`).
//!
//! `plain_loop SOURCE STEPS` trains SOURCE (digits or fashion-mnist) with batch 32 on one thread and prints one JSON object.

use std::time::Instant;

use skein_model::config::{DataConfig, ModelConfig, Source, Split};
use skein_model::data::{self, Sampler};
use skein_model::model::Model;

#[path = "../tests/numeric/plain.rs"]
mod plain;

const BATCH: usize = 32;
/// Steps before the clock starts: libtorch allocates and picks its kernels in the first ones.
const WARM_UP: u64 = 20;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [source, steps] = &arguments[..] else {
        return Err("usage: plain_loop digits|fashion-mnist STEPS".into());
    };
    let source = match source.as_str() {
        "digits" => Source::Digits,
        "fashion-mnist" => Source::FashionMnist,
        other => return Err(format!("no source {other}").into()),
    };
    let steps: u64 = steps.parse()?;
    skein_model::runtime::set_threads(1);
    let config = DataConfig {
        source,
        ..DataConfig::default()
    };
    let data = data::load(&config, &Default::default())?;
    let shape = data.train.input_shape();
    let model = Model::new(&ModelConfig::Cnn {}, shape, data.train.n_classes(), 1)?;
    let mut plain = plain::Plain::copy_of(&model);
    drop(model);
    let mut sampler = Sampler::new(&Split::default(), data.train.labels(), 1, 0, 0)?;
    let (mut started, mut cpu) = (Instant::now(), cpu_seconds()?);
    let mut loss = 0.0;
    for step in 0..WARM_UP + steps {
        if step == WARM_UP {
            (started, cpu) = (Instant::now(), cpu_seconds()?);
        }
        let batch = data.train.batch(&sampler.next_rows(BATCH));
        loss = plain.step(batch.x(), batch.y(), 0.01);
    }
    let seconds = started.elapsed().as_secs_f64();
    let cpu = cpu_seconds()? - cpu;
    let resident = resident_kb()?;
    println!(
        "{{\"steps\":{steps},\"seconds\":{seconds:.4},\"cpu_seconds\":{cpu:.4},\"resident_kb\":{resident},\"loss\":{loss:.4}}}"
    );
    Ok(())
}

fn resident_kb() -> Result<u64, Box<dyn std::error::Error>> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    let number = line.and_then(|line| line.split_whitespace().nth(1));
    Ok(number.ok_or("no VmRSS in /proc/self/status")?.parse()?)
}

/// Processor time of this process so far, in steps of 10 ms.
fn cpu_seconds() -> Result<f64, Box<dyn std::error::Error>> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    let fields: Vec<&str> = stat
        .rsplit(')')
        .next()
        .unwrap_or_default()
        .split_whitespace()
        .collect();
    let ticks = |index: usize| fields.get(index).and_then(|text| text.parse::<f64>().ok());
    let total = ticks(11)
        .zip(ticks(12))
        .ok_or("no times in /proc/self/stat")?;
    Ok((total.0 + total.1) / 100.0)
}
