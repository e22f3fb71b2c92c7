//! Names of metrics: what a run is judged by. How each is worked out from a record is in the crate's `report`.

use std::fmt;
use std::str::FromStr;

use super::error::did_you_mean;

/// A metric of a run, of all nodes or of some.
#[derive(Clone, Debug, PartialEq)]
pub struct Measure {
    /// What.
    pub quantity: Quantity,
    /// A node or group; none: the whole mesh.
    pub of: Option<String>,
}

/// What is measured.
#[derive(Clone, Debug, PartialEq)]
pub enum Quantity {
    /// One with a name of its own.
    Named(Named),
    /// One with a name of its own and a number.
    At(Against, f64),
    /// Any number that nodes write.
    Field {
        /// Event of the metrics.
        event: String,
        /// Field of the event.
        field: String,
        /// What of its values.
        statistic: Statistic,
    },
}

macro_rules! words {
    ($(#[$about:meta])* $name:ident: $($(#[$doc:meta])* $variant:ident = $word:literal,)+) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name { $($(#[$doc])* $variant,)+ }

        impl $name {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];

            /// As it is written.
            pub fn word(self) -> &'static str {
                match self { $(Self::$variant => $word,)+ }
            }

            fn from_word(word: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|one| one.word() == word)
            }
        }
    };
}

words! {
    /// Metrics with no number in brackets.
    Named:
    /// Validation accuracy of the agreed model, else the last one seen.
    Accuracy = "accuracy",
    /// The best validation accuracy seen on the way.
    BestAccuracy = "best_accuracy",
    /// Steps made.
    Steps = "steps",
    /// Training samples used.
    Samples = "samples",
    /// Steps per second from the first to the last step.
    StepsPerS = "steps_per_s",
    /// Seconds that the run took.
    DurationS = "duration_s",
    /// Bytes put on the wire.
    BytesSent = "bytes_sent",
    /// Bytes that came out of it.
    BytesDelivered = "bytes_delivered",
    /// Frames dropped by queues, lines and cuts.
    FramesDropped = "frames_dropped",
    /// CPU seconds of the programs.
    CpuS = "cpu_s",
    /// Largest resident memory of one node.
    PeakRssBytes = "peak_rss_bytes",
    /// Views seen.
    Views = "views",
    /// Share of the steps' time spent computing.
    ComputeShare = "compute_share",
    /// Share of the steps' time spent waiting for others.
    WaitShare = "wait_share",
    /// Share of the steps' time spent handing over and merging gradients.
    CommunicateShare = "communicate_share",
    /// Nodes that closed the job.
    ClosedNodes = "closed_nodes",
    /// Different models among those that closed the job.
    DistinctModels = "distinct_models",
    /// Nodes that said they failed, or whose program ended with an error.
    FailedNodes = "failed_nodes",
    /// Longest time from a kill or stop until every survivor steps in a view without the victim.
    RecoveryS = "recovery_s",
    /// Most steps that were made once more after the loss of a stage's host.
    RedoneSteps = "redone_steps",
    /// Longest time from a change of a CPU share or line until all hosts step in the next cut.
    RecutS = "recut_s",
    /// Training samples per second where training runs steadily.
    SamplesPerS = "samples_per_s",
    /// CPU of the testbed itself, in cores.
    SwitchCpuShare = "switch_cpu_share",
    /// CPU seconds of the testbed itself.
    SwitchCpuS = "switch_cpu_s",
}

words! {
    /// Metrics with a number in brackets.
    Against:
    /// Seconds until this validation accuracy.
    TimeToAccuracy = "time_to_accuracy",
    /// Seconds from the first view until the mean of five looks three seconds apart has this validation accuracy.
    SmoothedTimeToAccuracy = "smoothed_time_to_accuracy",
    /// Bytes sent until then.
    BytesToSmoothedAccuracy = "bytes_to_smoothed_accuracy",
    /// Seconds until this validation loss.
    TimeToLoss = "time_to_loss",
    /// Bytes sent until this validation accuracy.
    BytesToAccuracy = "bytes_to_accuracy",
    /// Training samples of all until this validation accuracy.
    SamplesToAccuracy = "samples_to_accuracy",
    /// Validation accuracy at this second.
    AccuracyAt = "accuracy_at",
    /// Validation loss at this second.
    LossAt = "loss_at",
    /// What this share, 0 to 1, of the times from the loss of a stage's host to the next step of all does not exceed.
    TakeoverS = "takeover_s",
    /// By how much this share, 0 to 1, of the cuts promised another time of a step than was measured, at most; 0.1 for 10 %.
    PredictionError = "prediction_error",
}

words! {
    /// What of a field's values.
    Statistic:
    /// The last.
    Last = "last",
    /// The smallest.
    Min = "min",
    /// The largest.
    Max = "max",
    /// Their mean.
    Mean = "mean",
    /// Their median.
    P50 = "p50",
    /// What 99 % do not exceed.
    P99 = "p99",
    /// Their sum.
    Sum = "sum",
    /// How many.
    Count = "count",
}

/// Why a text names no metric.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{problem}; {fix}")]
pub struct MeasureFault {
    /// What is wrong.
    pub problem: String,
    /// What to write instead.
    pub fix: String,
}

impl Measure {
    /// The node or group that it is about; none: all.
    pub fn node(&self) -> Option<&str> {
        self.of.as_deref()
    }
}

impl FromStr for Measure {
    type Err = MeasureFault;

    fn from_str(text: &str) -> Result<Self, MeasureFault> {
        let fault = |problem: String, fix: String| Err(MeasureFault { problem, fix });
        let (metric, of) = match text.rsplit_once('@') {
            Some((metric, of)) => (metric, Some(of.trim().to_owned())),
            None => (text, None),
        };
        let metric = metric.trim();
        let (name, inside) = match metric.split_once('(') {
            None => (metric, None),
            Some((name, inside)) => match inside.strip_suffix(')') {
                Some(inside) => (name, Some(inside)),
                None => {
                    let fix = "write it as time_to_accuracy(0.8)".into();
                    return fault(format!("{text:?} has no closing bracket"), fix);
                }
            },
        };
        let quantity = match (name, inside) {
            ("field", Some(inside)) => {
                if of.is_some() {
                    let fix = "write the node inside the brackets alone".into();
                    return fault("has a node twice".into(), fix);
                }
                return field(inside);
            }
            (name, Some(number)) if let Some(metric) = Against::from_word(name) => {
                match number.trim().parse::<f64>() {
                    Ok(share)
                        if matches!(metric, Against::TakeoverS | Against::PredictionError)
                            && !(0.0..=1.0).contains(&share) =>
                    {
                        let fix = format!("write a share from 0 to 1, such as {name}(0.5)");
                        return fault(format!("{share} is no share"), fix);
                    }
                    Ok(number) if number.is_finite() => Quantity::At(metric, number),
                    _ => {
                        let fix = format!("write a number in the brackets, such as {name}(0.8)");
                        return fault(format!("{:?} is no number", number.trim()), fix);
                    }
                }
            }
            (name, None) if let Some(metric) = Named::from_word(name) => Quantity::Named(metric),
            (name, None) if Against::from_word(name).is_some() => {
                let fix = format!("write it as {name}(0.8)");
                return fault(format!("{name} needs a number in brackets"), fix);
            }
            (name, Some(_)) if Named::from_word(name).is_some() => {
                return fault(
                    format!("{name} takes nothing in brackets"),
                    format!("write {name}"),
                );
            }
            (name, _) => {
                let known = Named::ALL.iter().map(|metric| metric.word());
                let known = known.chain(Against::ALL.iter().map(|metric| metric.word()));
                let fix = did_you_mean(name, known.chain(["field"]));
                return fault(format!("{name:?} is no metric"), fix);
            }
        };
        Ok(Self { quantity, of })
    }
}

/// "NODE, EVENT, FIELD, STATISTIC".
fn field(inside: &str) -> Result<Measure, MeasureFault> {
    let parts: Vec<&str> = inside.split(',').map(str::trim).collect();
    let [node, event, field, statistic] = parts.as_slice() else {
        return Err(MeasureFault {
            problem: format!("field({inside}) has {} parts", parts.len()),
            fix: "write field(NODE, EVENT, FIELD, STATISTIC), such as field(*, step, train_loss, last)".into(),
        });
    };
    let Some(statistic) = Statistic::from_word(statistic) else {
        let known = Statistic::ALL.iter().map(|statistic| statistic.word());
        return Err(MeasureFault {
            problem: format!("{statistic:?} is no statistic"),
            fix: did_you_mean(statistic, known),
        });
    };
    Ok(Measure {
        quantity: Quantity::Field {
            event: (*event).to_owned(),
            field: (*field).to_owned(),
            statistic,
        },
        of: (*node != "*").then(|| (*node).to_owned()),
    })
}

impl fmt::Display for Measure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.quantity {
            Quantity::Field {
                event,
                field,
                statistic,
            } => {
                let node = self.node().unwrap_or("*");
                return write!(f, "field({node}, {event}, {field}, {})", statistic.word());
            }
            Quantity::Named(metric) => f.write_str(metric.word())?,
            Quantity::At(metric, number) => write!(f, "{}({number})", metric.word())?,
        }
        self.of.iter().try_for_each(|of| write!(f, "@{of}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_metric_reads_as_it_is_written() {
        for text in [
            "time_to_accuracy(0.8)",
            "steps@fast",
            "accuracy",
            "loss_at(60)@slow-1",
            "takeover_s(0.95)@fast",
            "samples_per_s",
            "field(*, step, train_loss, last)",
            "field(fast-0, probe, goodput_bits_per_s, p50)",
        ] {
            let written = text.parse::<Measure>().map(|measure| measure.to_string());
            assert_eq!(written.as_deref(), Ok(text));
        }
    }

    #[test]
    fn faults_say_what_to_write() {
        for (text, fix) in [
            ("acuracy", "did you mean `accuracy`?"),
            ("time_to_accuracy", "write it as time_to_accuracy(0.8)"),
            ("steps(3)", "write steps"),
            (
                "field(*, step, train_loss, average)",
                "use one of last, min, max, mean, p50, p99, sum, count",
            ),
            (
                "accuracy_at(soon)",
                "write a number in the brackets, such as accuracy_at(0.8)",
            ),
            (
                "takeover_s(95)",
                "write a share from 0 to 1, such as takeover_s(0.5)",
            ),
            ("takeover_s", "write it as takeover_s(0.8)"),
        ] {
            let fault = text.parse::<Measure>().map_err(|fault| fault.fix);
            assert_eq!(fault, Err(fix.to_owned()), "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_a_metric_or_a_fault(text in "[a-z_]{0,12}[(@,.0-9)*a-z ]{0,30}") {
            if let Ok(measure) = text.parse::<Measure>() {
                prop_assert_eq!(measure.to_string().parse::<Measure>(), Ok(measure));
            }
        }
    }
}
