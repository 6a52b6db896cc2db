//! Shell completions and man pages. Both are made from the command line that a program really has, so they cannot
//! say anything else than the program does.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use clap::{Args, CommandFactory};
use clap_complete::Shell;

/// Options of `completions`.
#[derive(Clone, Copy, Debug, Args)]
pub struct Completions {
    /// Which shell.
    shell: Shell,
}

impl Completions {
    /// Prints the script for the program `C`. A reader that goes away early is no failure.
    pub fn print<C: CommandFactory>(self) -> std::io::Result<()> {
        match std::io::stdout().lock().write_all(&self.script::<C>()) {
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
            other => other,
        }
    }

    fn script<C: CommandFactory>(self) -> Vec<u8> {
        let mut command = C::command();
        let name = command.get_name().to_owned();
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut command, name.as_str(), &mut script);
        match (self.shell, String::from_utf8(script)) {
            // clap_complete 4.6 writes a hyphen of the program's name in two ways, and then completes nothing after a
            // subcommand (clap issue 6421). Where it writes one way only, this changes nothing.
            (Shell::Bash, Ok(text)) => {
                let (one, other) = (name.replace('-', "__subcmd__"), name.replace('-', "__"));
                text.replace(&one, &other).into_bytes()
            }
            (_, Ok(text)) => text.into_bytes(),
            (_, Err(bytes)) => bytes.into_bytes(),
        }
    }
}

/// Options of `man`.
#[derive(Clone, Debug, Args)]
pub struct Man {
    /// Folder for the pages; made when new. One page for the program and one for each subcommand.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

impl Man {
    /// Writes the pages of the program `C` (`NAME.1`, `NAME-SUBCOMMAND.1`) and returns their folder. The error names
    /// the folder.
    pub fn write<C: CommandFactory>(&self) -> std::io::Result<&Path> {
        let written = std::fs::create_dir_all(&self.out)
            .and_then(|()| clap_mangen::generate_to(C::command(), &self.out));
        let named = |error: std::io::Error| {
            let text = format!("{}: {error}; choose another --out", self.out.display());
            std::io::Error::new(error.kind(), text)
        };
        written.map(|()| self.out.as_path()).map_err(named)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    /// A program.
    #[derive(Parser)]
    #[command(name = "a-program")]
    enum Program {
        /// Does the work.
        Work {
            /// How much of it.
            #[arg(long)]
            amount: Option<u8>,
        },
        /// Not for people.
        #[command(hide = true)]
        Inner,
    }

    #[test]
    fn the_script_of_a_shell_offers_subcommands_and_options() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let script = Completions { shell }.script::<Program>();
            let script = String::from_utf8(script).unwrap();
            for word in ["a-program", "work", "amount"] {
                assert!(script.contains(word), "{shell}: {word}");
            }
        }
    }

    #[test]
    fn every_subcommand_for_people_has_a_page_and_hidden_ones_have_none() {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("man");
        let man = Man { out: out.clone() };
        man.write::<Program>().unwrap();
        man.write::<Program>().unwrap();
        let page = std::fs::read_to_string(out.join("a-program-work.1")).unwrap();
        assert!(page.contains("How much of it"), "{page}");
        assert!(out.join("a-program.1").exists());
        assert!(!out.join("a-program-inner.1").exists());
        std::fs::write(dir.path().join("file"), b"").unwrap();
        let man = Man {
            out: dir.path().join("file"),
        };
        let error = man.write::<Program>().unwrap_err().to_string();
        assert!(error.contains("/file"), "{error}");
    }
}
