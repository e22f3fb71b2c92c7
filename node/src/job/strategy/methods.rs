//! The methods to start from, as values of the keys.

use super::{Commit, Exchange, Local, Method, Outer, Select, ValueFormat, Waiting};

impl Exchange {
    /// The settings of a method.
    pub fn like(method: Method) -> Self {
        let skein = Self {
            like: method,
            waiting: Waiting::Never,
            select: Select::TopK,
            most: 0.01,
            least: 0.001,
            threshold: 0.01,
            values: ValueFormat::Octave,
            commit: Commit::Auto,
            local: Local::Share,
            outer: None,
            level: 1,
        };
        let dense = Self {
            select: Select::Dense,
            values: ValueFormat::F32,
            commit: Commit::Steps(1),
            ..skein
        };
        let rounds = |steps| Self {
            waiting: Waiting::All,
            commit: Commit::Steps(steps),
            local: Local::Full,
            ..dense
        };
        let bounded = |staleness, backup| Waiting::Bounded { staleness, backup };
        match method {
            Method::Skein => skein,
            Method::Dlion => Self {
                select: Select::MaxN,
                most: 1.0,
                values: ValueFormat::Auto,
                commit: Commit::Steps(1),
                ..skein
            },
            Method::Dense => Self {
                waiting: Waiting::All,
                ..dense
            },
            Method::Gaia => Self {
                waiting: bounded(10, 0),
                select: Select::Gaia,
                ..dense
            },
            Method::Ako => Self {
                select: Select::Ako,
                ..dense
            },
            Method::Hop => Self {
                waiting: bounded(5, 1),
                ..dense
            },
            Method::Ssp => Self {
                waiting: bounded(40, 0),
                ..dense
            },
            Method::Asp => dense,
            Method::Adsp => Self {
                commit: Commit::Search,
                local: Local::Full,
                ..dense
            },
            Method::Adacomm => Self {
                commit: Commit::Adacomm(40),
                ..rounds(40)
            },
            Method::FixedAdacomm => rounds(40),
            Method::LocalSgd => rounds(32),
            Method::Diloco => Self {
                outer: Some(Outer {
                    lr: 0.7,
                    momentum: 0.9,
                }),
                ..rounds(32)
            },
        }
    }
}
