//! Asks two questions of one conversation and prints the answers as they are written: `chat [MODEL]`.
#![expect(clippy::print_stdout, reason = "an example prints")]

use std::io::{Write, stdout};

use stonechat::{Chat, Error, Llm};

fn main() -> Result<(), Error> {
    let llm = Llm::open(std::env::args().nth(1).unwrap_or("qwen3:0.6b".into()))?;
    let mut chat = Chat::new().system("Answer in one sentence.").temperature(0.2).max_tokens(100);
    for question in ["Why is the sky blue?", "And at sunset?"] {
        println!("> {question}");
        chat = chat.user(question);
        let mut answer = llm.chat(&chat);
        for piece in &mut answer {
            print!("{}", piece?);
            let _ = stdout().flush();
        }
        println!();
        chat = chat.assistant(answer.wait()?.text);
    }
    Ok(())
}
