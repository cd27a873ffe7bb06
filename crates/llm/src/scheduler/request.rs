//! Request of a text.

use std::sync::Arc;
use std::time::Duration;

use web_time::Instant;

use crate::scheduler::task::{Kind, Task};
use crate::text::generation::Generation;
use crate::text::options::GenerateOptions;
use crate::{Error, ModelInfo};

/// Tokens to continue, and their place among other requests.
///
/// ```
/// # use stonechat_llm::{GenerateOptions, Request};
/// # let prompt = vec![1, 2, 3];
/// let options = GenerateOptions { n_predict: Some(100), ..GenerateOptions::default() };
/// let request = Request { n_choices: 2, ..Request::new(prompt, options) };
/// ```
#[derive(Debug, Clone)]
pub struct Request {
    /// Tokens of the prompt.
    pub prompt: Vec<u32>,
    /// Options of the text.
    pub options: GenerateOptions,
    /// Number of texts after the prompt. Text `i` is sampled with the seed plus `i`.
    pub n_choices: usize,
    /// Requests with a smaller value run first.
    pub priority: i32,
    /// Salt of the prefix cache: requests with another salt share no pages.
    pub cache_salt: u64,
    /// Whether pages of earlier prompts are used.
    pub reads_cache: bool,
    /// Time at which it ends between two steps: with [`Error::DeadlinePassed`] before its first token, then with
    /// [`Finish::TimeLimit`](crate::Finish::TimeLimit).
    pub deadline: Option<Instant>,
    /// Time after its first token from which a text with a line break ends with
    /// [`Finish::TimeLimit`](crate::Finish::TimeLimit).
    pub max_decode: Option<Duration>,
}

impl Request {
    /// One text of priority 0 that uses the prefix cache.
    #[must_use]
    pub fn new(prompt: Vec<u32>, options: GenerateOptions) -> Self {
        Self {
            prompt,
            options,
            n_choices: 1,
            priority: 0,
            cache_salt: 0,
            reads_cache: true,
            deadline: None,
            max_decode: None,
        }
    }

    /// Checks the options and makes the sampler. It takes time (for DRY, a pass over the vocabulary), which a caller may not
    /// want to spend between two steps.
    ///
    /// # Errors
    /// If the prompt is empty or an option is out of range.
    pub fn prepare(self, model: &Arc<ModelInfo>) -> Result<Task, Error> {
        // Tokens that the cache has would not run, and have no probabilities.
        let reads_cache = self.reads_cache && self.options.prompt_probs.is_none();
        let text = Generation::new(model, self.prompt, self.options)?;
        let mut task = Task::new(Kind::Text(Box::new(text)), self.n_choices);
        (task.id.priority, task.cache_salt) = (self.priority, self.cache_salt);
        task.reads_cache = reads_cache;
        (task.deadline, task.max_decode) = (self.deadline, self.max_decode);
        Ok(task)
    }
}
