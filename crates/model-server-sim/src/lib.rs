//! A simulated vLLM server.
//!
//! It looks like vLLM from the outside, batches like vLLM on the inside, and computes nothing: no GPU, no
//! weights, a few megabytes of memory. It stands in for model servers wherever a gateway in front of them is
//! tried out, tested or measured.
//!
//! ```text
//! model-server-sim --port 8000 --max-num-seqs 32 --time-per-output-token 6.9 --first-token-floor 115
//! ```
//!
//! The first line on standard output is `listening on 127.0.0.1:8000`; with `--port 0` a free port is taken and
//! named there. SIGTERM and SIGINT cut all streams and end the process with 0. In a test, [`Server`] runs in
//! the process itself.
//!
//! # What it serves
//!
//! | path | |
//! |---|---|
//! | `POST /v1/completions` | `prompt`: a string or an array of token ids |
//! | `POST /v1/chat/completions` | `messages` with strings or text parts |
//! | `GET /v1/models`, `GET /health`, `GET /metrics` | as vLLM; metrics under vLLM's names |
//!
//! Honoured are `model`, `stream`, `stream_options.include_usage`, `max_tokens` (16 for completions if unset),
//! `max_completion_tokens`, `ignore_eos`, `add_generation_prompt`, `continue_final_message`, and `n` if it is 1.
//! Sampling parameters and other fields have no effect. Errors have OpenAI's shape. Each response says
//! in `x-served-by` which server it came from. A client that goes away frees its slot before the next step begins.
//!
//! # What it says
//!
//! A token is a word: text is cut at white space, so that anybody can count. Each token is a function of the
//! seed and of the whole text before it ([`text`]). A client that lost its stream can send the prompt and the text
//! it has got as a new prompt and gets the rest of the same text, from any server with the same seed; for a
//! chat it sends the text as a last message of the assistant, with `"continue_final_message": true` and
//! `"add_generation_prompt": false`. Without `ignore_eos` the model ends a text after `--mean-output-tokens` on
//! average; the end counts as a token.
//!
//! # How long it takes
//!
//! The [`engine`] works in steps. A step takes
//!
//! ```text
//! t * (f + (1 - f) * sequences / max_num_seqs) + prompt tokens / prefill_rate
//! ```
//!
//! with `t` the time per output token at full batch and `f` the fixed step share, and gives one token
//! to each sequence whose prompt is computed. A first token does not come before `--first-token-floor` after the
//! request's arrival, which stands for all that is not simulated: tokenisation, transport, launch. There is no
//! prefix cache.

mod api;
mod body;
pub mod engine;
mod inference;
mod metrics;
pub mod page;
mod server;
mod settings;
pub mod text;

pub use server::{MAX_REQUEST_BODY, Server};
pub use settings::{InvalidSettings, Mistake, Settings};
