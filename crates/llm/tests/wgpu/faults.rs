//! Out of memory and device loss: an error of the request, never a panic.

use std::ops::ControlFlow;
use std::path::Path;

use pollster::block_on;
use stonechat_formats::ModelFile;
use stonechat_llm::{
    Completion, Error, Event, GenerateOptions, Model, Session, SessionOptions, StateOptions,
};
use stonechat_nn::{DeviceApi, Wgpu};
use stonechat_sampling::SamplingOptions;
use stonechat_testkit::wgpu;

fn load(backend: &Wgpu) -> Result<Model, Error> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../test-data/golden/llm");
    let file = ModelFile::open(folder.join("qwen3moe.gguf")).unwrap();
    Model::load(backend.clone(), &file, |_| ())
}

fn generate(session: &mut Session) -> Result<Completion, Error> {
    let options = GenerateOptions {
        n_predict: Some(3),
        sampling: SamplingOptions::greedy(),
        ignore_eos: true,
        ..GenerateOptions::default()
    };
    let on_event = &mut |_: Event<'_>| ControlFlow::Continue(());
    block_on(session.generate(&[1, 2, 3], &options, on_event))
}

/// Loads the model and generates a text.
fn write(backend: &Wgpu) -> Result<Vec<u32>, Error> {
    let model = load(backend)?;
    let options = SessionOptions { n_ctx: Some(64), ..SessionOptions::default() };
    let mut session = Session::new(&model, options)?;
    Ok(generate(&mut session)?.tokens)
}

#[test]
fn what_does_not_fit_is_an_error_and_less_works_afterwards() {
    let name = "what_does_not_fit_is_an_error_and_less_works_afterwards";
    let Some(backend) = wgpu::backends(name).pop() else { return };
    let gpu = backend.gpu();
    let expected = write(&wgpu::backends(name).remove(0)).unwrap();
    // Each attempt has more memory: weights fit, then the KV cache, then scratch buffers.
    let (mut limit, mut refused) = (0, 0);
    let tokens = loop {
        gpu.limit_memory_bytes(limit);
        match write(&backend) {
            Ok(tokens) => break tokens,
            Err(error) => {
                let error = error.to_string();
                let is_clear = ["cannot allocate", "out of memory", "no memory"];
                assert!(is_clear.iter().any(|text| error.contains(text)), "{limit}: {error}");
                refused += 1;
                limit = limit * 5 / 4 + 1000;
            }
        }
    };
    assert_eq!(tokens, expected);
    assert!(refused > 5, "{refused} attempts");
    // A second model does not fit; the first still works.
    gpu.limit_memory_bytes(u64::MAX);
    let model = load(&backend).unwrap();
    let options = SessionOptions { n_ctx: Some(64), ..SessionOptions::default() };
    let mut session = Session::new(&model, options).unwrap();
    gpu.limit_memory_bytes(gpu.memory_bytes());
    let error = load(&backend).unwrap_err().to_string();
    assert!(error.contains("cannot allocate"), "{error}");
    let error = model.state(StateOptions::new(1 << 20)).unwrap_err().to_string();
    assert!(error.contains("cannot allocate") || error.contains("at most"), "{error}");
    assert_eq!(generate(&mut session).unwrap().tokens, expected);
}

#[test]
fn a_lost_device_is_an_error_of_every_request() {
    for backend in wgpu::backends("a_lost_device_is_an_error_of_every_request") {
        let model = load(&backend).unwrap();
        let options = SessionOptions { n_ctx: Some(64), ..SessionOptions::default() };
        let mut session = Session::new(&model, options).unwrap();
        generate(&mut session).unwrap();
        backend.gpu().lose();
        let is_told = |error: Error| {
            let error = error.to_string();
            assert!(error.contains("the device was lost"), "{error}");
        };
        is_told(generate(&mut session).unwrap_err());
        is_told(generate(&mut session).unwrap_err());
        is_told(Session::new(&model, options).unwrap_err());
        is_told(load(&backend).unwrap_err());
        assert!(backend.load_values(&[0.0; 4]).is_err());
    }
}
