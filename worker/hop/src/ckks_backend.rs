//! The circuit's operations on real ciphertexts.

use std::sync::{Arc, Mutex};

use cipherhop_ckks::{
    Bootstrapper, ChebPoly, Ciphertext, CkksError, Complex, Context, Evaluator, Isa, KeySource,
    LinearMap, Params, kernel_for,
};

use crate::backend::{Backend, Poly};
use crate::error::HopError;
use crate::lin::LinearSpec;

/// Tables of a parameter set: made once, shared by all hops of a process.
#[derive(Clone)]
pub struct Engine {
    /// Moduli, transforms, encoder.
    pub ctx: Arc<Context>,
    /// Matrices of the bootstrap.
    pub boot: Arc<Bootstrapper>,
}

impl Engine {
    /// Builds the tables.
    pub fn new(params: Params) -> Result<Engine, CkksError> {
        Engine::on(Isa::best(), params)
    }

    /// Builds the tables, to be used with the kernel of that instruction set.
    pub fn on(isa: Isa, params: Params) -> Result<Engine, CkksError> {
        let ctx = Context::with_kernel(params, kernel_for(isa)?)?;
        let boot = Arc::new(Bootstrapper::new(ctx.clone())?);
        Ok(Engine { ctx, boot })
    }

    /// The tables made last, if they are of these parameters; else new ones.
    pub fn shared(params: Params) -> Result<Engine, CkksError> {
        static LAST: Mutex<Option<Engine>> = Mutex::new(None);
        let mut last = match LAST.lock() {
            Ok(guard) => guard,
            Err(poisoned) => poisoned.into_inner(),
        };
        match &*last {
            Some(engine) if *engine.ctx.params_digest() == params.digest() => Ok(engine.clone()),
            _ => {
                let engine = Engine::new(params)?;
                *last = Some(engine.clone());
                Ok(engine)
            }
        }
    }

    /// A backend with these keys.
    pub fn backend(&self, keys: Arc<dyn KeySource>) -> Ckks {
        Ckks {
            ev: Evaluator::new(self.ctx.clone(), keys),
            boot: self.boot.clone(),
        }
    }
}

/// Ciphertexts under evaluation keys.
pub struct Ckks {
    ev: Evaluator,
    boot: Arc<Bootstrapper>,
}

impl Ckks {
    fn ctx(&self) -> &Context {
        self.ev.context()
    }
}

impl Backend for Ckks {
    type Ct = Ciphertext;

    fn level(&self, a: &Ciphertext) -> usize {
        a.level()
    }

    fn add(&self, a: &Ciphertext, b: &Ciphertext) -> Result<Ciphertext, HopError> {
        Ok(self.ev.add(a, b)?)
    }

    fn sub(&self, a: &Ciphertext, b: &Ciphertext) -> Result<Ciphertext, HopError> {
        Ok(self.ev.sub(a, b)?)
    }

    fn add_plain(&self, a: &Ciphertext, v: &[Complex]) -> Result<Ciphertext, HopError> {
        let p = self.ctx().encode_add(v, a.level())?;
        Ok(self.ev.add_plain(a, &p)?)
    }

    fn mul_plain(&self, a: &Ciphertext, v: &[Complex]) -> Result<Ciphertext, HopError> {
        let p = self.ctx().encode_mul(v, a.level())?;
        Ok(self.ev.mul_plain(a, &p)?)
    }

    fn mul_int(&self, a: &Ciphertext, by: i64) -> Result<Ciphertext, HopError> {
        Ok(self.ev.mul_int(a, by))
    }

    fn mul_i(&self, a: &Ciphertext) -> Result<Ciphertext, HopError> {
        Ok(self.ev.mul_i(a))
    }

    fn mul(&self, a: &Ciphertext, b: &Ciphertext) -> Result<Ciphertext, HopError> {
        Ok(self.ev.mul(a, b)?)
    }

    fn square(&self, a: &Ciphertext) -> Result<Ciphertext, HopError> {
        Ok(self.ev.square(a)?)
    }

    fn rotate(&self, a: &Ciphertext, steps: i64) -> Result<Ciphertext, HopError> {
        Ok(self.ev.rotate(a, steps)?)
    }

    fn rotate_many(&self, a: &Ciphertext, steps: &[i64]) -> Result<Vec<Ciphertext>, HopError> {
        Ok(self.ev.rotate_hoisted(a, steps)?)
    }

    fn conj(&self, a: &Ciphertext) -> Result<Ciphertext, HopError> {
        Ok(self.ev.conjugate(a)?)
    }

    fn drop_to(&self, a: &Ciphertext, level: usize) -> Result<Ciphertext, HopError> {
        Ok(self.ev.drop_to(a, level)?)
    }

    fn linear(
        &self,
        a: &Ciphertext,
        map: &LinearSpec,
        weight: &(dyn Fn(usize, usize) -> Complex + Sync),
    ) -> Result<Ciphertext, HopError> {
        let mut linear = LinearMap::new(map.block);
        linear.n1 = map.n1;
        linear.diagonals = map.diagonals(weight);
        Ok(self.ev.linear(a, &linear)?)
    }

    fn polys(&self, a: &Ciphertext, polys: &[Poly]) -> Result<Vec<Ciphertext>, HopError> {
        let polys: Vec<ChebPoly> = polys
            .iter()
            .map(|p| ChebPoly {
                coeffs: p.coeffs.clone(),
                lo: -1.0,
                hi: 1.0,
                mask: p.mask.as_ref().map(|m| m.to_vec()),
            })
            .collect();
        let refs: Vec<&ChebPoly> = polys.iter().collect();
        Ok(self.ev.cheb(a, &refs)?)
    }

    fn boot_stc(&self, a: &Ciphertext) -> Result<Ciphertext, HopError> {
        Ok(self.boot.stc(&self.ev, a, None)?)
    }

    fn boot_raise(&self, a: &Ciphertext) -> Result<Ciphertext, HopError> {
        Ok(self.boot.mod_raise(&self.ev, a)?)
    }

    fn boot_cts(&self, a: &Ciphertext, complex: bool) -> Result<Vec<Ciphertext>, HopError> {
        let mut x = a.clone();
        for stage in 0..self.boot.cts_stages() - 1 {
            x = self.boot.cts(&self.ev, &x, stage)?;
        }
        if complex {
            let (re, im) = self.boot.cts_last_complex(&self.ev, &x)?;
            Ok(vec![re, im])
        } else {
            Ok(vec![self.boot.cts_last_real(&self.ev, &x)?])
        }
    }

    fn boot_evalmod(&self, a: &Ciphertext, gain: f64) -> Result<Ciphertext, HopError> {
        Ok(self.boot.evalmod_gain(&self.ev, a, gain)?)
    }
}
