//! Names of what the host and the programs of this crate exchange.

use stonechat_nn::op::{Port, RowTable, SlotTable};

/// `[W * 3000, n_mels]`: mel frames.
pub(crate) const MEL: Port = Port::new("Mel");
/// `[W * positions, D]`: output of the encoder.
pub(crate) const AUDIO: Port = Port::new("Audio");

/// `[W * positions, C]` of each captured window: keys of alignment head `head`.
pub(crate) const fn captured_keys(head: usize) -> Port {
    Port::new("CapturedKeys").at(head)
}

/// `[T, C]`: queries of alignment head `head`.
pub(crate) const fn captured_queries(head: usize) -> Port {
    Port::new("CapturedQueries").at(head)
}

/// `[W * positions]`: slots of the encoder's own keys and values.
pub(crate) const ENCODER_SLOTS: SlotTable = SlotTable::new(1, "Encoder");
/// `[W * positions]`: slots of the keys and values that the decoder attends to.
pub(crate) const CROSS_SLOTS: SlotTable = SlotTable::new(2, "Cross");

/// `[W * positions]`: all positions of the window of audio.
pub(crate) const ENCODER_ROWS: RowTable = RowTable::new(2, "Encoder");
/// `[T]`: the audio of the sequence.
pub(crate) const CROSS_ROWS: RowTable = RowTable::new(3, "Cross");
