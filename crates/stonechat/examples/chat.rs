//! Asks two questions of one conversation and prints the answers as they are written: `chat [MODEL]`.

use std::io::{Write, stdout};

use stonechat::{ChatRequest, Llm};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let llm = Llm::open(std::env::args().nth(1).unwrap_or("qwen3:0.6b".into()))?;
    let mut chat =
        ChatRequest::new().system("Answer in one sentence.").temperature(0.2).max_tokens(100);
    for question in ["Why is the sky blue?", "And at sunset?"] {
        writeln!(stdout(), "> {question}")?;
        chat = chat.user(question);
        let mut answer = llm.chat(&chat);
        for piece in &mut answer {
            write!(stdout(), "{}", piece?)?;
            stdout().flush()?;
        }
        writeln!(stdout())?;
        chat = chat.assistant(answer.wait()?.text);
    }
    Ok(())
}
