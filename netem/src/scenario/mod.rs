//! A scenario: which nodes, on which links, running what, and what happens to them; the same for both engines.
//!
//! `plan` holds a scenario as the engines run it: names resolved, counts spelled out, every number checked.

mod plan;

pub use plan::{
    Action, Comparison, Condition, End, Event, Expectation, Line, Node, Pair, Problem, Program,
    Scenario, Sim, When,
};
