//! The instruction sets that have a kernel, and the choice among them.

use crate::error::CkksError;
use crate::fma::FmaKernel;
use crate::ifma::ifma_kernel;
use crate::kernel::{Kernel, ScalarKernel};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// An instruction set with a kernel of its own; all kernels compute the same bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Isa {
    /// 52-bit multiply-add on 512-bit integer vectors (x86-64).
    Avx512Ifma,
    /// Double-precision vectors with fused multiply-add (x86-64).
    Avx2,
    /// Double-precision vectors with fused multiply-add (AArch64).
    Neon,
    /// Portable integer code, the reference.
    Scalar,
}

impl Isa {
    /// All of them, fastest first.
    pub const ALL: [Isa; 4] = [Isa::Avx512Ifma, Isa::Avx2, Isa::Neon, Isa::Scalar];

    /// The name on the command line and in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Isa::Avx512Ifma => "avx512ifma",
            Isa::Avx2 => "avx2",
            Isa::Neon => "neon",
            Isa::Scalar => "scalar",
        }
    }

    /// Those that this processor has, fastest first; never empty.
    pub fn available() -> Vec<Isa> {
        Isa::ALL
            .into_iter()
            .filter(|isa| isa.is_available())
            .collect()
    }

    /// Whether this processor has it.
    pub fn is_available(self) -> bool {
        kernel_for(self).is_ok()
    }

    /// The fastest that this processor has.
    pub fn best() -> Isa {
        Isa::ALL
            .into_iter()
            .find(|isa| isa.is_available())
            .unwrap_or(Isa::Scalar)
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Isa {
    type Err = CkksError;

    fn from_str(text: &str) -> Result<Isa, CkksError> {
        Isa::ALL
            .into_iter()
            .find(|isa| isa.name() == text)
            .ok_or_else(|| CkksError::UnknownIsa(text.to_owned()))
    }
}

/// The kernel of an instruction set.
pub fn kernel_for(isa: Isa) -> Result<Arc<dyn Kernel>, CkksError> {
    let missing = CkksError::IsaMissing(isa);
    let f64_vectors = || -> Option<Arc<dyn Kernel>> { Some(Arc::new(FmaKernel::try_new()?)) };
    match isa {
        Isa::Scalar => Ok(Arc::new(ScalarKernel)),
        Isa::Avx2 if cfg!(target_arch = "x86_64") => f64_vectors().ok_or(missing),
        Isa::Neon if cfg!(target_arch = "aarch64") => f64_vectors().ok_or(missing),
        Isa::Avx512Ifma => ifma_kernel().ok_or(missing),
        Isa::Avx2 | Isa::Neon => Err(missing),
    }
}

/// The fastest kernel for this processor.
pub(crate) fn best_kernel() -> Arc<dyn Kernel> {
    kernel_for(Isa::best()).unwrap_or_else(|_| Arc::new(ScalarKernel))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back_and_others_refused() {
        for isa in Isa::ALL {
            assert_eq!(isa.to_string().parse::<Isa>(), Ok(isa));
        }
        let error = "avx".parse::<Isa>().unwrap_err();
        assert_eq!(error, CkksError::UnknownIsa("avx".into()));
        assert_eq!(
            error.to_string(),
            "unknown instruction set 'avx': scalar, avx2, avx512ifma or neon"
        );
    }

    #[test]
    fn an_available_kernel_has_the_name_of_its_instruction_set_and_others_are_errors() {
        assert!(Isa::available().contains(&Isa::Scalar));
        for isa in Isa::ALL {
            match kernel_for(isa) {
                Ok(kernel) => assert_eq!(kernel.name(), isa.name()),
                Err(error) => assert_eq!(
                    error.to_string(),
                    format!("this processor has no {isa} instructions")
                ),
            }
        }
        assert!(!(Isa::Avx2.is_available() && Isa::Neon.is_available()));
    }
}
