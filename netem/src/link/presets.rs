//! Named links. The numbers are what such lines usually give, and stand in docs/testbed.md too.

use std::time::Duration;

use super::Profile;

/// A node's line to the network: up and down differ on most lines people have at home.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Preset {
    /// Its name in a scenario file.
    pub name: &'static str,
    /// From the node.
    pub up: Profile,
    /// To the node.
    pub down: Profile,
    /// What it stands for.
    pub about: &'static str,
}

const fn line(mbit: u64, delay_us: u64, jitter_us: u64, loss: f64, burst: Option<f64>) -> Profile {
    Profile {
        rate: Some(mbit * 1_000_000),
        delay: Duration::from_micros(delay_us),
        jitter: Duration::from_micros(jitter_us),
        loss,
        burst,
        reorder: 0.0,
        queue: None,
    }
}

/// All of them. Delays are one-way and per line, so two nodes of one kind are two of them apart.
pub const PRESETS: [Preset; 6] = [
    Preset {
        name: "lan-1g",
        up: line(1000, 50, 5, 0.0, None),
        down: line(1000, 50, 5, 0.0, None),
        about: "switched gigabit Ethernet: 0.2 ms round trip",
    },
    Preset {
        name: "lan-100m",
        up: line(100, 100, 10, 0.0, None),
        down: line(100, 100, 10, 0.0, None),
        about: "fast Ethernet, a Raspberry Pi 3's port: 0.4 ms round trip",
    },
    Preset {
        name: "wifi",
        up: line(60, 1500, 1000, 0.002, Some(3.0)),
        down: line(60, 1500, 1000, 0.002, Some(3.0)),
        about: "a shared 802.11n/ac cell some rooms away: 6 ms round trip, losses in bursts",
    },
    Preset {
        name: "dsl",
        up: line(10, 8000, 500, 0.0001, None),
        down: line(50, 8000, 500, 0.0001, None),
        about: "VDSL: 10 up, 50 down, 32 ms round trip",
    },
    Preset {
        name: "lte",
        up: line(15, 20_000, 5000, 0.001, Some(2.0)),
        down: line(40, 20_000, 5000, 0.001, Some(2.0)),
        about: "a phone network: 15 up, 40 down, 80 ms round trip with large jitter",
    },
    Preset {
        name: "cross-region",
        up: line(200, 20_000, 500, 0.0001, None),
        down: line(200, 20_000, 500, 0.0001, None),
        about: "two data centres on one continent: 80 ms round trip",
    },
];

/// The preset of this name.
pub fn preset(name: &str) -> Option<&'static Preset> {
    PRESETS.iter().find(|preset| preset.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_preset_is_possible_and_found_by_its_name() {
        for of in PRESETS {
            assert_eq!(of.up.check(), Ok(()), "{}", of.name);
            assert_eq!(of.down.check(), Ok(()), "{}", of.name);
            assert_eq!(preset(of.name).map(|found| found.about), Some(of.about));
        }
    }
}
