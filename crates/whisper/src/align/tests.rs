use pollster::block_on;
use stonechat_nn::{Cpu, KvDType};
use stonechat_testkit::{Lcg, Reference, TinyWhisper};

use super::*;
use crate::WINDOW_FRAMES;

const TEXT: [u32; 6] = [11, 300, 4000, 17, 50000, 11];
const N_POSITIONS: usize = 700;
/// Window of the state that holds the audio.
const WINDOW: usize = 1;

/// A random model with noise as audio, ready to align.
fn encoded<B: Backend>(backend: B) -> (Model<B>, DecoderState<B>) {
    let model = Model::load(backend, &TinyWhisper::default().file(), |_| {}).unwrap();
    let mut encoder = model.encoder_state(KvDType::F32).unwrap();
    model.encode(&mut encoder, &Lcg::new(5).normals(WINDOW_FRAMES * 80, 0.5));
    let mut state = model.decoder_state(2, 2, KvDType::F32).unwrap();
    model.enable_alignment(&mut state).unwrap();
    model.set_audio(&mut state, WINDOW, &encoder);
    (model, state)
}

#[test]
fn the_cpu_agrees_with_the_f64_oracle() {
    fn run<B: Backend>(backend: B) -> (TokenTimes, Vec<f32>) {
        let (model, mut state) = encoded(backend);
        let start = [model.special().sot];
        let times =
            block_on(model.align(&mut state, WINDOW, (&start, &TEXT), N_POSITIONS)).unwrap();
        let n_tokens = start.len() + TEXT.len() + 2;
        let weights =
            block_on(model.alignment_weights(&state, WINDOW, n_tokens, N_POSITIONS)).unwrap();
        (times, weights)
    }
    let ((times, weights), (oracle, expected)) = (run(Cpu::new(2).unwrap()), run(Reference));
    assert_eq!(times.probabilities.len(), TEXT.len());
    for (got, want) in times.probabilities.iter().zip(&oracle.probabilities) {
        assert!((got - want).abs() <= 1e-4 * want, "{got} {want}");
    }
    // The weights have a deviation near 1.
    assert!(expected.iter().any(|w| w.abs() > 0.3));
    for (got, want) in weights.iter().zip(&expected) {
        assert!((got - want).abs() <= 5e-3, "{got} {want}");
    }
}

#[test]
fn times_are_inside_the_window_and_in_order() {
    let (model, mut state) = encoded(Cpu::new(2).unwrap());
    let mut align = |text: &[u32], n_positions: usize| {
        let start = [model.special().sot];
        let times = block_on(model.align(&mut state, WINDOW, (&start, text), n_positions)).unwrap();
        assert_eq!((times.seconds.len(), times.probabilities.len()), (text.len() + 1, text.len()));
        assert!(times.seconds.is_sorted() && times.probabilities.iter().all(|p| *p >= 0.0));
        let end = n_positions as f64 * TIMESTAMP_SECONDS;
        assert!(times.seconds.iter().all(|&s| s == 0.0 || (0.0..end).contains(&s)), "{times:?}");
    };
    align(&TEXT, 1500);
    align(&TEXT, 2);
    align(&TEXT, 0);
    align(&[], 1500);
    // More tokens than fit with two more, as a full window may have.
    let n_text_ctx = model.config().n_text_ctx;
    align(&vec![300; n_text_ctx - 1], 1500);
}

#[test]
fn only_recorded_passes_copy_queries() {
    let (model, mut state) = encoded(Cpu::new(1).unwrap());
    let read = |state: &DecoderState<Cpu>| {
        let queries = &state.capture.as_ref().unwrap().queries;
        let mut out = vec![0.0; model.config().text_head_dim()];
        block_on(model.backend().read(queries, 0, &mut out)).unwrap();
        out
    };
    let batch = Batch { tokens: &TEXT, sequences: &[2; TEXT.len()], outputs: &[0] };
    model.decode(&mut state, batch).unwrap();
    assert!(read(&state).iter().all(|q| *q == 0.0));
    block_on(model.align(&mut state, WINDOW, (&[], &TEXT), N_POSITIONS)).unwrap();
    assert!(read(&state).iter().any(|q| *q != 0.0));
}
