//! Weights of the network: part of this crate, or given by the program.

#[cfg(feature = "vad-weights")]
mod embedded;
#[cfg(not(feature = "vad-weights"))]
mod not_embedded;

use std::sync::OnceLock;

#[cfg(feature = "vad-weights")]
use embedded::EMBEDDED;
#[cfg(not(feature = "vad-weights"))]
use not_embedded::EMBEDDED;

use super::network::N_WEIGHTS;
use crate::Error;

/// Length of the file in bytes.
const N_BYTES: usize = 4 * N_WEIGHTS;

static GIVEN: OnceLock<Vec<u8>> = OnceLock::new();

/// Sets the weights for the rest of the process: the content of `silero_vad_v6.bin`, 226,689 numbers of 32 bits. A program in a
/// browser fetches the file beside its binary. Weights that are set come before those in this crate.
///
/// # Errors
/// If the length is another one, a number is not finite, or other weights were set before.
pub fn set_weights(bytes: Vec<u8>) -> Result<(), Error> {
    check(&bytes)?;
    let mut bytes = Some(bytes);
    let given = GIVEN.get_or_init(|| bytes.take().unwrap_or_default());
    match bytes {
        Some(other) if other != *given => {
            Err(Error::VadWeights { expected: "the weights set before", got: "others".to_owned() })
        }
        _ => Ok(()),
    }
}

/// Whether there are weights: in this crate, or set.
#[must_use]
pub fn has_weights() -> bool {
    get().is_ok()
}

/// The weights, little-endian numbers of 32 bits.
pub(super) fn get() -> Result<&'static [u8], Error> {
    let expected = "`vad::set_weights` first, since this build has none (feature `vad-weights`)";
    let missing = || Error::VadWeights { expected, got: "no weights".to_owned() };
    GIVEN.get().map(Vec::as_slice).or(EMBEDDED).ok_or_else(missing)
}

fn check(bytes: &[u8]) -> Result<(), Error> {
    if bytes.len() != N_BYTES {
        let got = format!("{} bytes", bytes.len());
        return Err(Error::VadWeights { expected: "226,689 numbers, 906,756 bytes", got });
    }
    let is_finite = |&number: &[u8; 4]| f32::from_le_bytes(number).is_finite();
    match bytes.as_chunks::<4>().0.iter().position(|number| !is_finite(number)) {
        Some(at) => {
            let got = format!("another one at byte {}", 4 * at);
            Err(Error::VadWeights { expected: "finite numbers", got })
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_weights_than_those_of_the_network_are_refused() {
        let message = |bytes: Vec<u8>| set_weights(bytes).unwrap_err().to_string();
        assert_eq!(N_BYTES, 906_756);
        let expected = "VAD weights: expected 226,689 numbers, 906,756 bytes, got";
        assert_eq!(message(Vec::new()), format!("{expected} 0 bytes"));
        assert_eq!(message(b"<!doctype html>".to_vec()), format!("{expected} 15 bytes"));
        let mut damaged = vec![0; N_BYTES];
        damaged[400..404].copy_from_slice(&f32::NAN.to_le_bytes());
        assert_eq!(
            message(damaged),
            "VAD weights: expected finite numbers, got another one at byte 400"
        );
    }

    #[test]
    fn weights_are_set_once() {
        let weights = include_bytes!("silero_vad_v6.bin");
        // The same weights as those in the crate: other tests run beside this one.
        set_weights(weights.to_vec()).unwrap();
        set_weights(weights.to_vec()).unwrap();
        assert!(has_weights());
        assert_eq!(get().unwrap(), weights);
        let error = set_weights(vec![0; N_BYTES]).unwrap_err().to_string();
        assert_eq!(error, "VAD weights: expected the weights set before, got others");
    }
}
