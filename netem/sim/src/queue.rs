//! What happens next in virtual time: first by moment, then by the order of asking, so that a run repeats to the byte.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use skein_netem::link::Nanos;

#[derive(Debug)]
struct Due<E> {
    key: Reverse<(Nanos, u64)>,
    event: E,
}

impl<E> PartialEq for Due<E> {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key
    }
}

impl<E> Eq for Due<E> {}

impl<E> PartialOrd for Due<E> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for Due<E> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.key.cmp(&other.key)
    }
}

/// The events to come.
#[derive(Debug)]
pub(super) struct Queue<E> {
    heap: BinaryHeap<Due<E>>,
    asked: u64,
}

impl<E> Queue<E> {
    pub(super) fn new() -> Self {
        Self {
            heap: BinaryHeap::new(),
            asked: 0,
        }
    }

    pub(super) fn push(&mut self, at: Nanos, event: E) {
        self.asked += 1;
        self.heap.push(Due {
            key: Reverse((at, self.asked)),
            event,
        });
    }

    pub(super) fn pop(&mut self) -> Option<(Nanos, E)> {
        self.heap.pop().map(|due| (due.key.0.0, due.event))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_by_moment_and_then_in_the_order_of_asking() {
        let mut queue = Queue::new();
        for (at, name) in [(5, 'c'), (1, 'a'), (5, 'd'), (2, 'b')] {
            queue.push(at, name);
        }
        let order: String = std::iter::from_fn(|| queue.pop())
            .map(|(_, name)| name)
            .collect();
        assert_eq!(order, "abcd");
    }
}
