//! Decoding of windows of any number of recordings: their texts, prompts and alignment passes are rows of one ragged batch.
//!
//! ```text
//! add ──► waiting ──encode──► language │ prompt ──► search ──┬──► finished ──► audio kept for a next request, or dropped
//!                                      │    ▲               │
//!                                      │    └── fallback ───┘
//!                                      │ align
//!
//! step: encodes a waiting window if there is a free place, then runs one decoder step:
//!     last token of every active hypothesis; then prompts and alignment passes, as many as fit
//!     on the device: logit filters, log-sum-exp and largest logits of every row
//!     each window's search chooses tokens and forks KV sequences
//! ```
//!
//! A window that ends, falls back to the next temperature or begins does not wait for others. A free place goes to the
//! recording with the fewest places, so that a long recording with many windows does not starve a short one.

mod places;
mod sizes;

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Weak};

use stonechat_nn::{KvDType, Slot};
use web_time::Instant;

use crate::WINDOW_FRAMES;
use crate::align::{self, AlignRequest};
use crate::error::Error;
use crate::fallback::Fallback;
use crate::languages::Language;
use crate::model::Model;
use crate::options::{Options, no_temperature};
use crate::sampling::LogitStats;
use crate::search::{FinishReason, Search, SearchOptions};
use crate::state::{BatchPlan, State, StateOptions};
use crate::timings::Timings;
use crate::window::WindowResult;
use crate::window_request::{
    DecodeRequest, WindowAudio, WindowHandle, WindowOutput, WindowRequest, WindowTask,
};
use places::{Place, Request};

/// Decodes windows of any number of recordings in one batch.
#[derive(Debug)]
pub struct WindowDecoder {
    model: Model,
    state: State,
    /// By window of the state.
    places: Vec<Place>,
    /// Requests without a place, and their spectrograms.
    queue: VecDeque<(Request, Vec<f32>)>,
    finished: Vec<(Weak<()>, WindowOutput)>,
    scratch: Scratch,
    pub(crate) timings: Timings,
}

#[derive(Debug)]
enum Task {
    /// Candidate languages; all if there are none.
    DetectLanguage(Vec<Language>),
    Decode(Box<Decoding>),
    Align(AlignRequest),
}

impl Task {
    /// Whether the next rows are those of a text whose prompt has run.
    fn is_text(&self) -> bool {
        matches!(self, Self::Decode(decoding) if decoding.is_prefilled)
    }

    /// Adds the next rows to the plan of a step of at most `max_tokens`; a prompt or alignment pass only if it fits. Returns the
    /// place of the logits that the task needs.
    fn add_to(
        &self,
        plan: &mut BatchPlan<'_>,
        model: &Model,
        max_tokens: usize,
        slot: impl Fn(usize) -> Slot,
    ) -> Result<Range<usize>, Error> {
        let room = max_tokens - plan.n_tokens();
        let special = model.special();
        let mut logits = 0..0;
        match self {
            Self::DetectLanguage(_) if room > 0 => {
                plan.add(slot(0), &[special.sot], [0])?;
                let first = special.sot + 1;
                logits =
                    plan.request_logits(plan.n_outputs() - 1, first..first + special.n_languages);
            }
            Self::Decode(decoding) if decoding.is_prefilled => {
                let first = plan.n_outputs();
                for hypothesis in decoding.search.active() {
                    let last = hypothesis.tokens.last().expect("a prefilled text has a token");
                    plan.add(slot(hypothesis.sequence), &[*last], [0])?;
                    decoding.filter_last(plan, &hypothesis.tokens);
                }
                logits = decoding.request_logits(plan, first, model);
            }
            Self::Decode(decoding) if decoding.request.prompt.len() <= room => {
                let (first, prompt) = (plan.n_outputs(), &decoding.request.prompt[..]);
                let start = prompt.iter().rposition(|&token| token == special.sot).unwrap_or(0);
                plan.add(slot(0), prompt, [start, prompt.len() - 1])?;
                for hypothesis in decoding.search.active() {
                    decoding.filter_last(plan, &hypothesis.tokens);
                }
                let no_speech = special.no_speech..special.no_speech + 1;
                logits = plan.request_logits(first, no_speech);
                logits.end = decoding.request_logits(plan, first + 1, model).end;
            }
            Self::Align(request) => {
                let tokens = request.tokens(model);
                if tokens.len() <= room {
                    plan.add_captured(slot(0), &tokens)?;
                }
            }
            Self::DetectLanguage(_) | Self::Decode(_) => {}
        }
        Ok(logits)
    }
}

/// Text that is being decoded.
#[derive(Debug)]
struct Decoding {
    request: DecodeRequest,
    fallback: Fallback,
    /// Search of the current attempt.
    search: Search,
    /// Whether the current attempt has run its prompt.
    is_prefilled: bool,
    no_speech_prob: f64,
}

impl Decoding {
    /// Filters the logits of the last output of a plan, those after the tokens of a hypothesis.
    fn filter_last(&self, plan: &mut BatchPlan<'_>, tokens: &[u32]) {
        let DecodeRequest { rules, min_end_timestamp, .. } = &self.request;
        plan.filter_last(rules, tokens, *min_end_timestamp, self.search.top_k());
    }

    /// Requests the logits of all outputs from `first` on, if tokens are sampled; returns their place.
    fn request_logits(
        &self,
        plan: &mut BatchPlan<'_>,
        first: usize,
        model: &Model,
    ) -> Range<usize> {
        let n_rows = if self.search.samples() { plan.n_outputs() - first } else { 0 };
        plan.request_logits(first, 0..(n_rows * model.config().vocab_size) as u32)
    }
}

/// Rows of one window in a step.
#[derive(Debug, Clone)]
struct PlannedWindow {
    window: usize,
    rows: Range<usize>,
    outputs: Range<usize>,
    /// Place of requested logits.
    logits: Range<usize>,
}

/// Reusable host memory of a step.
#[derive(Debug, Default)]
struct Scratch {
    /// Logits of the hypotheses of one window.
    stats: Vec<LogitStats>,
    planned: Vec<PlannedWindow>,
    forks: Vec<(usize, usize)>,
    /// Spectrograms of a pass of the encoder.
    mel: Vec<f32>,
}

impl WindowDecoder {
    /// Allocates and warms up the state for `options.n_windows` windows at a time with at most `options.n_sequences` beams.
    ///
    /// # Errors
    /// If the device is out of memory.
    pub fn new(model: &Model, options: StateOptions) -> Result<Self, Error> {
        Ok(Self {
            state: model.state(options)?,
            model: model.clone(),
            places: (0..options.n_windows).map(|_| Place::Free).collect(),
            queue: VecDeque::new(),
            finished: Vec::new(),
            scratch: Scratch::default(),
            timings: Timings::default(),
        })
    }

    /// As [`new`](Self::new), for recordings with `options`.
    ///
    /// # Errors
    /// If an option does not fit the model or the device is out of memory.
    pub fn for_options(model: &Model, options: &Options, kv_dtype: KvDType) -> Result<Self, Error> {
        options.validate()?;
        options.validate_for(model.config())?;
        let (n_windows, n_sequences) = (options.n_windows(), options.n_sequences());
        let has_alignment = options.needs_alignment();
        let encoder_batch_size = model.encoder_batch_size(n_windows);
        Self::new(
            model,
            StateOptions { n_windows, n_sequences, kv_dtype, has_alignment, encoder_batch_size },
        )
    }

    /// The model.
    #[must_use]
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Time and work so far.
    #[must_use]
    pub fn timings(&self) -> Timings {
        self.timings
    }

    /// Whether no window waits, is being decoded, or keeps its audio.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.places.iter().all(|place| matches!(place, Place::Free))
    }

    /// Adds a window. It waits until there is a place for its audio, unless that is kept.
    ///
    /// # Errors
    /// If the prompt does not fit the context, there is no temperature, or the beams do not fit the state.
    ///
    /// # Panics
    /// If a spectrogram has another size, no finished request kept the audio, or alignment is not enabled.
    pub fn add(&mut self, request: WindowRequest) -> Result<WindowHandle, Error> {
        let WindowRequest { owner, audio, task, keep_audio } = request;
        let task = match task {
            WindowTask::DetectLanguage(languages) => Task::DetectLanguage(languages),
            WindowTask::Decode(request) => Task::Decode(Box::new(self.decoding(request)?)),
            WindowTask::Align(request) => {
                assert!(
                    self.state.options().has_alignment,
                    "`reserve` for word times comes before alignment"
                );
                Task::Align(request)
            }
        };
        let alive = Arc::new(());
        let request = Request { handle: Arc::downgrade(&alive), owner, keep_audio, task };
        match audio {
            WindowAudio::Mel(mel) => {
                let n_values = WINDOW_FRAMES * self.model.config().n_mels;
                assert_eq!(mel.len(), n_values, "one window of mel frames");
                self.queue.push_back((request, mel));
            }
            WindowAudio::Kept(kept) => {
                let kept = kept.downgrade();
                let has_audio = |place: &&mut Place| matches!(place, Place::Kept { handle, .. } if handle.ptr_eq(&kept));
                let place = self.places.iter_mut().find(has_audio).expect("audio that was kept");
                *place = Place::Active(request);
            }
        }
        Ok(WindowHandle::new(alive))
    }

    /// Takes the result of a window, once there is one.
    pub fn finished(&mut self, window: &WindowHandle) -> Option<WindowOutput> {
        let handle = window.downgrade();
        let index = self.finished.iter().position(|(other, _)| other.ptr_eq(&handle))?;
        Some(self.finished.swap_remove(index).1)
    }

    /// Cancels a window now; other windows continue.
    pub fn cancel(&mut self, window: WindowHandle) {
        drop(window);
        self.remove_abandoned();
    }

    /// Encodes waiting windows into free slots, and runs one decoder step of all windows.
    ///
    /// # Errors
    /// If the device fails: the windows are lost.
    pub async fn step(&mut self) -> Result<(), Error> {
        self.step_beside(|_| Ok(())).await
    }

    /// As [`step`](Self::step), with work of the host while the device encodes windows, if it does.
    pub(crate) async fn step_beside(
        &mut self,
        host_work: impl FnOnce(&mut Timings) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.remove_abandoned();
        let has_encoded = self.encode_next();
        let started = Instant::now();
        self.run_step()?;
        if has_encoded {
            host_work(&mut self.timings)?;
        }
        if self.scratch.planned.iter().any(|window| !window.outputs.is_empty()) {
            self.state.read_outputs().await?;
        }
        let mut has_text = false;
        let planned = std::mem::take(&mut self.scratch.planned);
        for window in &planned {
            let Place::Active(Request { task, .. }) = &self.places[window.window] else { continue };
            has_text |= !matches!(task, Task::Align(_));
            let output = match task {
                Task::DetectLanguage(languages) => Some(self.choose_language(window, languages)),
                Task::Decode(_) => self.choose_tokens(window),
                Task::Align(request) => {
                    let place = (window.window, window.rows.clone());
                    let times = align::read_times(&self.model, &mut self.state, request, place);
                    Some(WindowOutput::Times(times.await?))
                }
            };
            if let Some(output) = output {
                self.finish(window.window, output);
            }
        }
        self.scratch.planned = planned;
        let spent = if has_text { &mut self.timings.decode } else { &mut self.timings.align };
        *spent += started.elapsed();
        Ok(())
    }

    /// Sizes of the state.
    #[must_use]
    pub fn state_options(&self) -> StateOptions {
        self.state.options()
    }

    /// Checks that recordings with `options` fit the state.
    pub(crate) fn check(&self, options: &Options) -> Result<(), Error> {
        self.check_sequences(options)?;
        if options.word_timestamps && !self.state.options().has_alignment {
            let (expected, got) = ("a decoder reserved for them", "one without".to_owned());
            return Err(Error::Option { option: "word-timestamps", expected, got });
        }
        Ok(())
    }

    fn check_sequences(&self, options: &Options) -> Result<(), Error> {
        if options.n_sequences() > self.state.options().n_sequences {
            let expected = "no more than the sequences of the state";
            let got = options.n_sequences().to_string();
            return Err(Error::Option { option: "beam-size or best-of", expected, got });
        }
        Ok(())
    }

    /// Checks a request and starts its first attempt.
    fn decoding(&self, request: DecodeRequest) -> Result<Decoding, Error> {
        let options = &request.options;
        let n_ctx = self.model.config().n_text_ctx;
        if options.temperatures.is_empty() {
            return Err(no_temperature());
        }
        self.check_sequences(options)?;
        let tokens = request.prompt.len();
        if tokens == 0 || tokens > n_ctx {
            return Err(Error::ContextFull { tokens, n_ctx });
        }
        let fallback = Fallback::new(Arc::clone(options));
        let search = new_search(&self.model, &request, &fallback);
        Ok(Decoding { request, fallback, search, is_prefilled: false, no_speech_prob: 0.0 })
    }

    /// Frees the windows of dropped handles.
    fn remove_abandoned(&mut self) {
        let is_alive = |handle: &Weak<()>| handle.strong_count() > 0;
        self.queue.retain(|(request, _)| is_alive(&request.handle));
        self.finished.retain(|(handle, _)| is_alive(handle));
        for (window, place) in self.places.iter_mut().enumerate() {
            if let Place::Kept { handle, .. } | Place::Active(Request { handle, .. }) = place
                && !is_alive(handle)
            {
                *place = Place::Free;
                self.state.clear(window);
            }
        }
    }

    /// Encodes waiting windows into free places, in at most one pass of the encoder: other windows are not decoded meanwhile.
    /// While others are decoded, a pass waits until there are as many free places as it could fill.
    fn encode_next(&mut self) -> bool {
        let wanted = self.queue.len().min(self.state.options().encoder_batch_size);
        let n_free = self.places.iter().filter(|place| place.is_free()).count();
        let has_active = self.places.iter().any(|place| matches!(place, Place::Active(_)));
        if wanted == 0 || n_free == 0 || (n_free < wanted && has_active) {
            return false;
        }
        let started = Instant::now();
        let windows = places::free_run(&self.places, wanted);
        self.scratch.mel.clear();
        for window in windows.clone() {
            let next = places::take_next(&mut self.queue, &self.places);
            let (request, mel) = next.expect("as many windows wait");
            if windows.len() == 1 {
                self.scratch.mel = mel;
            } else {
                self.scratch.mel.extend_from_slice(&mel);
            }
            self.places[window] = Place::Active(request);
        }
        self.state.encode(&self.scratch.mel);
        self.state.set_audio(windows.start);
        self.timings.encode += started.elapsed();
        self.timings.windows += windows.len();
        true
    }

    /// Plans and enqueues a decoder step.
    fn run_step(&mut self) -> Result<(), Error> {
        let Self { state, scratch, places, model, timings, .. } = self;
        let (options, max_tokens) = (state.options(), state.limits().n_batch);
        scratch.planned.clear();
        let mut plan = state.plan();
        // Texts go first: a prompt waits while the step is full, a text does not.
        for adds_texts in [true, false] {
            for (window, place) in places.iter().enumerate() {
                let Place::Active(Request { task, .. }) = place else { continue };
                if task.is_text() != adds_texts {
                    continue;
                }
                let (first_row, first_output) = (plan.n_tokens(), plan.n_outputs());
                let slot = |index| options.slot(window, index);
                let logits = task.add_to(&mut plan, model, max_tokens, slot)?;
                if plan.n_tokens() > first_row {
                    let (rows, outputs) =
                        (first_row..plan.n_tokens(), first_output..plan.n_outputs());
                    scratch.planned.push(PlannedWindow { window, rows, outputs, logits });
                }
            }
        }
        timings.rows += plan.n_tokens();
        plan.run();
        Ok(())
    }

    /// Most probable of `candidates` in a window; of all languages if there are none.
    fn choose_language(&self, window: &PlannedWindow, candidates: &[Language]) -> WindowOutput {
        let special = self.model.special();
        let logits = self.state.outputs().logits(window.logits.clone());
        let languages = special.languages().iter().zip(logits);
        let is_candidate = |(language, _): &(&Language, &f32)| {
            candidates.is_empty() || candidates.contains(language)
        };
        let languages = || languages.clone().filter(is_candidate);
        // The logits cover all languages of the model; candidates are a subset.
        let best = languages().max_by(|a, b| a.1.total_cmp(b.1));
        let (&language, &best) = best.expect("a language of the model");
        let total: f32 = languages().map(|(_, logit)| (logit - best).exp()).sum();
        WindowOutput::Language(language, 1.0 / total)
    }

    /// Chooses the next tokens of a window; its result, if that was the last step of the last attempt.
    fn choose_tokens(&mut self, planned: &PlannedWindow) -> Option<WindowOutput> {
        let Self { state, scratch, places, model, timings, .. } = self;
        let PlannedWindow { window, outputs, logits, .. } = planned;
        let Place::Active(Request { task: Task::Decode(decoding), .. }) = &mut places[*window]
        else {
            return None;
        };
        let (mut rows, mut logits) = (outputs.clone(), state.outputs().logits(logits.clone()));
        if !decoding.is_prefilled {
            // The first output of a prompt follows `<|startoftranscript|>`: it has the logit of no speech.
            let no_speech = logits[0] - state.outputs().log_sum_exp(rows.start);
            decoding.no_speech_prob = f64::from(no_speech.exp());
            decoding.is_prefilled = true;
            logits = &logits[1..];
            rows.start += 1;
        }
        let n_rows = rows.len();
        scratch.stats.resize_with(n_rows.max(scratch.stats.len()), LogitStats::default);
        for (row, stats) in rows.zip(&mut scratch.stats) {
            state.outputs().copy_stats(row, decoding.search.top_k(), stats);
        }
        decoding.search.step(logits, &scratch.stats[..n_rows], &mut scratch.forks);
        for &(from, to) in &scratch.forks {
            state.fork(state.slot(*window, from), state.slot(*window, to));
        }
        if !decoding.search.active().is_empty() {
            return None;
        }
        let temperature = decoding.fallback.temperature();
        let result = WindowResult::new(
            &mut decoding.search,
            model.tokenizer(),
            temperature,
            decoding.no_speech_prob,
        );
        let has_failed = decoding.fallback.fails(&result);
        tracing::debug!(
            start_s = decoding.request.start,
            temperature,
            tokens = result.tokens.len(),
            avg_logprob = result.avg_logprob,
            compression_ratio = result.compression_ratio,
            no_speech_prob = result.no_speech_prob,
            has_failed,
            "window decoded"
        );
        timings.fallbacks += usize::from(has_failed);
        if let Some(mut decoded) = decoding.fallback.accept(result) {
            if decoded.result.finish == FinishReason::Loop {
                decoded.result.cut_loop(model.tokenizer(), model.special());
            }
            timings.tokens += decoded.result.tokens.len();
            return Some(WindowOutput::Text(decoded));
        }
        state.clear(*window);
        decoding.search = new_search(model, &decoding.request, &decoding.fallback);
        decoding.is_prefilled = false;
        None
    }

    /// Ends the request of a place.
    fn finish(&mut self, window: usize, output: WindowOutput) {
        self.state.clear(window);
        let place = &mut self.places[window];
        if let Place::Active(Request { handle, owner, keep_audio, .. }) =
            std::mem::replace(place, Place::Free)
        {
            if keep_audio {
                *place = Place::Kept { handle: handle.clone(), owner };
            }
            self.finished.push((handle, output));
        }
    }
}

/// Search of the current attempt at a window.
fn new_search(model: &Model, request: &DecodeRequest, fallback: &Fallback) -> Search {
    let config = model.config();
    let (options, temperature) = (fallback.options(), fallback.temperature());
    // The reference samples n_text_ctx / 2 tokens and stops when the context is full.
    let room = config.n_text_ctx - request.prompt.len();
    let max_tokens = options.max_new_tokens.unwrap_or(config.max_new_tokens());
    let search_options = SearchOptions {
        temperature,
        width: if temperature == 0.0 { options.beam_size } else { options.best_of },
        patience: options.patience,
        length_penalty: options.length_penalty,
        eot: model.special().eot,
        max_tokens: max_tokens.min(room + 1),
    };
    let prefix = &request.prompt[request.prompt.len() - request.n_prefix..];
    Search::new(search_options, prefix, request.seed.wrapping_add(fallback.attempt() as u64))
}
