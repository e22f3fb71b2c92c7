//! Gradients between peers: choose the entries worth sending, code them into a packet, check and add a received packet.
//!
//! A model's gradient is one flat `&[f32]`, the *arena*, cut into variables by a [`layout::Layout`]. The sender keeps a
//! *residual* arena per link: what that peer has not been told yet (error feedback, Karimireddy et al. 2019,
//! arXiv:1901.09847; selection by magnitude with a sampled threshold, Lin et al. 2018, Deep Gradient Compression,
//! arXiv:1712.01887; selection per variable, DLion, Hong and Chandra, HPDC 2021). Packing takes the largest entries out of
//! the residual, so *sent + residual = gradient* holds exactly, rounding included:
//!
//! ```
//! use skein_gossip::gradient::{
//!     layout::Layout, pack::Packer, selection::{Order, Selection}, unpack::Unpacker, values::Values,
//! };
//!
//! let layout = Layout::new(&[3, 2])?; // two variables
//! let (mut packer, mut unpacker) = (Packer::new(&layout)?, Unpacker::new(&layout)?);
//! let mut residual = [0.1, -3.0, 0.2, 0.0, 7.0];
//! let mut packet = vec![];
//! let third = Selection::TopK { fraction: 0.34 }; // of each variable's entries
//! let order = Order { selection: third, values: Values::F16, weights: None };
//! packer.pack(&mut residual, order, &mut packet)?;
//! assert_eq!(residual, [0.1, 0.0, 0.2, 0.0, 0.0]);
//!
//! let mut inbox = [0.0; 5];
//! unpacker.check_and_add(&packet, 0.5, &mut inbox)?;
//! assert_eq!(inbox, [0.0, -1.5, 0.0, 0.0, 3.5]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A packet is a header (`format.rs`), a raw part and a part compressed by zstd; the sender subtracts from its residual with
//! the very function by which the receiver adds. How much is sent, [`Packer::fit`](pack::Packer::fit) finds from a budget of
//! bytes. Modules in reading order, lowest first.

mod sample;
pub mod accumulate;
pub mod values;
pub mod selection;
pub mod layout;
mod select;
mod indices;
mod format;
pub mod unpack;
mod survey;
mod entropy;
pub mod fit;
pub mod pack;
