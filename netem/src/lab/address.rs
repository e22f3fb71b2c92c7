//! Addresses: a node's IP and MAC follow from its rank, so the switch knows every port without learning.

use std::net::Ipv4Addr;

use crate::link::NodeIndex;

/// Most nodes of one network; far more than one machine can run processes for.
pub(super) const MAX_NODES: usize = 1000;
/// `eth0` is in this network: 10.77.0.0/16.
pub(super) const PREFIX_BITS: u8 = 16;
/// Locally administered, with a mark of ours.
const MAC_START: [u8; 4] = [0x02, 0x53, 0x4b, 0x4e];

/// The IP of a node.
pub(super) fn ip(rank: NodeIndex) -> Ipv4Addr {
    let [high, low] = ((rank + 1) as u16).to_be_bytes();
    Ipv4Addr::new(10, 77, high, low)
}

/// The MAC of a node.
pub(super) fn mac(rank: NodeIndex) -> [u8; 6] {
    let [a, b, c, d] = MAC_START;
    let [high, low] = (rank as u16).to_be_bytes();
    [a, b, c, d, high, low]
}

/// Where a frame goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Destination {
    /// To one node.
    Node(NodeIndex),
    /// To all others.
    All,
    /// To nobody here.
    Unknown,
}

/// Where an Ethernet frame goes in a network of `nodes` nodes.
pub(super) fn destination(frame: &[u8], nodes: usize) -> Destination {
    // Destination, source, type.
    if frame.len() < 14 {
        return Destination::Unknown;
    }
    if frame[0] & 1 == 1 {
        return Destination::All;
    }
    let rank = usize::from(u16::from_be_bytes([frame[4], frame[5]]));
    if frame[..4] == MAC_START && rank < nodes {
        Destination::Node(rank)
    } else {
        Destination::Unknown
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn frame(to: [u8; 6]) -> Vec<u8> {
        let mut frame = to.to_vec();
        frame.resize(60, 0);
        frame
    }

    #[test]
    fn a_frame_goes_to_the_node_whose_mac_it_names() {
        for rank in [0, 1, 255, 256, MAX_NODES - 1] {
            let to = destination(&frame(mac(rank)), MAX_NODES);
            assert_eq!(to, Destination::Node(rank));
        }
        assert_eq!(destination(&frame(mac(6)), 6), Destination::Unknown);
        assert_eq!(destination(&frame([0xff; 6]), 6), Destination::All);
        let multicast = [0x01, 0, 0x5e, 0, 0, 251];
        assert_eq!(destination(&frame(multicast), 6), Destination::All);
    }

    #[test]
    fn every_node_has_an_ip_of_its_own_that_is_neither_network_nor_broadcast() {
        let all: std::collections::BTreeSet<Ipv4Addr> = (0..MAX_NODES).map(ip).collect();
        assert_eq!(all.len(), MAX_NODES);
        assert!(!all.contains(&Ipv4Addr::new(10, 77, 0, 0)));
        assert!(!all.contains(&Ipv4Addr::new(10, 77, 255, 255)));
    }

    proptest! {
        #[test]
        fn any_bytes_go_to_a_node_that_exists_or_nowhere(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            if let Destination::Node(rank) = destination(&bytes, 3) {
                prop_assert!(rank < 3);
            }
        }
    }
}
