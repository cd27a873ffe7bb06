//! Answers a spoken question, speech and text in one process: `voice [RECORDING [WHISPER [LLM]]]`.
#![expect(clippy::print_stdout, reason = "an example prints")]

use stonechat::{ChatRequest, Error, Llm, Whisper};

/// Blocks no executor: each model runs on a thread of its own.
async fn answer(recording: String, speech: String, language: String) -> Result<String, Error> {
    let whisper = Whisper::open_async(speech).await?;
    let llm = Llm::open_async(language).await?;
    let question = whisper.transcribe(recording).await?.text;
    let chat = ChatRequest::new().system("Answer in one sentence.").user(question.trim());
    Ok(llm.chat(chat.max_tokens(100)).await?.text)
}

fn main() -> Result<(), Error> {
    let mut args = std::env::args().skip(1);
    let mut next = |default: &str| args.next().unwrap_or(default.into());
    let work = answer(next("question.mp3"), next("base"), next("qwen3:0.6b"));
    println!("{}", pollster::block_on(work)?);
    Ok(())
}
