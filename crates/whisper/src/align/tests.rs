use pollster::block_on;
use stonechat_nn::{Cpu, Device, KvDType};
use stonechat_testkit::{Lcg, Reference, TinyWhisper};

use super::*;
use crate::WINDOW_FRAMES;
use crate::state::StateOptions;

const TEXT: [u32; 6] = [11, 300, 4000, 17, 50000, 11];
const N_POSITIONS: usize = 700;
/// Window of the state that holds the audio.
const WINDOW: usize = 1;

/// A random model with noise as audio, ready to align.
fn encoded(device: impl Into<Device>) -> (Model, State) {
    let model = Model::load(device, &TinyWhisper::default().file(), |_| {}).unwrap();
    let options = StateOptions {
        n_windows: 2,
        n_sequences: 2,
        kv_dtype: KvDType::F32,
        has_alignment: true,
        ..StateOptions::default()
    };
    let mut state = model.state(options).unwrap();
    state.encode(&Lcg::new(5).normals(WINDOW_FRAMES * 80, 0.5));
    state.set_audio(WINDOW);
    (model, state)
}

/// Runs the pass of `request`, after other rows of the step; returns its rows.
fn run(model: &Model, state: &mut State, request: &AlignRequest) -> Range<usize> {
    state.clear(WINDOW);
    let (text, aligned) = (state.slot(WINDOW, 1), state.slot(WINDOW, 0));
    let mut plan = state.plan();
    plan.add(text, &[9, 77], [1]).unwrap();
    let first = plan.n_tokens();
    plan.add_captured(aligned, &request.tokens(model)).unwrap();
    let rows = first..plan.n_tokens();
    plan.run();
    rows
}

fn request(model: &Model, text: &[u32], n_positions: usize) -> AlignRequest {
    let n_frames = n_positions * FRAMES_PER_POSITION;
    AlignRequest { start: vec![model.special().sot], text: text.to_vec(), n_frames }
}

#[test]
fn the_cpu_agrees_with_the_f64_oracle() {
    fn align(device: impl Into<Device>) -> (TokenTimes, Vec<f32>) {
        let (model, mut state) = encoded(device);
        let request = request(&model, &TEXT, N_POSITIONS);
        let place = (WINDOW, run(&model, &mut state, &request));
        let weights = alignment_weights(&model, &mut state, place.clone(), N_POSITIONS);
        let weights = block_on(weights).unwrap();
        (block_on(read_times(&model, &mut state, &request, place)).unwrap(), weights)
    }
    let ((times, weights), (oracle, expected)) = (align(Cpu::new(2).unwrap()), align(Reference));
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
        let request = request(&model, text, n_positions);
        let place = (WINDOW, run(&model, &mut state, &request));
        let times = block_on(read_times(&model, &mut state, &request, place)).unwrap();
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
