//! Asks a question and prints the answer as it is written: `ask [MODEL]`.
#![expect(clippy::print_stdout, reason = "an example prints")]

use std::io::Write;

fn main() -> Result<(), stonechat::Error> {
    let llm = stonechat::Llm::open(std::env::args().nth(1).unwrap_or("qwen3:0.6b".into()))?;
    for piece in llm.chat("Why is the sky blue?") {
        print!("{}", piece?);
        let _ = std::io::stdout().flush();
    }
    println!();
    Ok(())
}
