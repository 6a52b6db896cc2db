//! Strict reader of GGUF model files (version 2 and 3): header, metadata and tensors on demand.
//!
//! Own code because the published readers hand out raw tensor bytes after trusting every length in the header.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{BufReader, Read, Seek, SeekFrom},
    path::{Path, PathBuf},
};

use super::{ModelError, bytes::Bounded, dequant::TensorType, error::malformed, math::Matrix};

const MAX_STRING: u64 = 1 << 20;
const MAX_ELEMENTS: u64 = 4_000_000;
const MAX_ENTRIES: u64 = 65_536;

/// One metadata value; arrays of the kinds a tokenizer needs.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    Int(i64),
    Float(f64),
    Bool(bool),
    Text(String),
    Texts(Vec<String>),
    Ints(Vec<i64>),
    Floats(Vec<f64>),
}

#[derive(Clone, Debug)]
struct TensorInfo {
    /// Outermost first.
    shape: Vec<usize>,
    kind: TensorType,
    /// From the start of the file.
    offset: u64,
    bytes: u64,
}

/// An open GGUF file: metadata in memory, tensors read when asked for.
#[derive(Debug)]
pub(crate) struct GgufFile {
    path: PathBuf,
    meta: BTreeMap<String, Value>,
    tensors: BTreeMap<String, TensorInfo>,
}

impl GgufFile {
    pub(crate) fn open(path: &Path) -> Result<Self, ModelError> {
        let file = File::open(path).map_err(|e| io(path, e))?;
        let length = file.metadata().map_err(|e| io(path, e))?.len();
        let (meta, tensors) = read_header(BufReader::new(file), length)?;
        Ok(Self {
            path: path.to_path_buf(),
            meta,
            tensors,
        })
    }

    pub(crate) fn value(&self, key: &str) -> Option<&Value> {
        self.meta.get(key)
    }

    pub(crate) fn text(&self, key: &str) -> Option<&str> {
        match self.meta.get(key) {
            Some(Value::Text(text)) => Some(text),
            _ => None,
        }
    }

    pub(crate) fn count(&self, key: &str) -> Result<usize, ModelError> {
        match self.meta.get(key) {
            Some(Value::Int(n)) if *n >= 0 => Ok(*n as usize),
            Some(_) => Err(malformed(format!("{key} is no count"))),
            None => Err(malformed(format!("{key} is missing"))),
        }
    }

    pub(crate) fn float(&self, key: &str) -> Result<f64, ModelError> {
        match self.meta.get(key) {
            Some(Value::Float(x)) => Ok(*x),
            Some(_) => Err(malformed(format!("{key} is no floating-point number"))),
            None => Err(malformed(format!("{key} is missing"))),
        }
    }

    pub(crate) fn has_tensor(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// Shape, outermost first.
    pub(crate) fn shape(&self, name: &str) -> Result<&[usize], ModelError> {
        Ok(&self.info(name)?.shape)
    }

    fn info(&self, name: &str) -> Result<&TensorInfo, ModelError> {
        self.tensors
            .get(name)
            .ok_or_else(|| ModelError::MissingTensor(name.to_string()))
    }

    fn read(&self, name: &str, expected: &[usize]) -> Result<Vec<f32>, ModelError> {
        let info = self.info(name)?;
        if info.shape != expected {
            return Err(ModelError::Shape {
                name: name.to_string(),
                found: info.shape.clone(),
                expected: expected.to_vec(),
            });
        }
        let mut file = File::open(&self.path).map_err(|e| io(&self.path, e))?;
        file.seek(SeekFrom::Start(info.offset))
            .map_err(|e| io(&self.path, e))?;
        let mut bytes = vec![0; info.bytes as usize];
        file.read_exact(&mut bytes).map_err(|e| io(&self.path, e))?;
        let out = info.kind.decode(&bytes);
        if out.iter().any(|v| !v.is_finite()) {
            return Err(malformed(format!(
                "tensor {name} holds a value that is not finite"
            )));
        }
        Ok(out)
    }

    pub(crate) fn matrix(
        &self,
        name: &str,
        rows: usize,
        cols: usize,
    ) -> Result<Matrix, ModelError> {
        Ok(Matrix {
            rows,
            cols,
            data: self.read(name, &[rows, cols])?,
        })
    }

    pub(crate) fn vector(&self, name: &str, len: usize) -> Result<Vec<f32>, ModelError> {
        self.read(name, &[len])
    }
}

fn io(path: &Path, source: std::io::Error) -> ModelError {
    ModelError::Io {
        path: path.display().to_string(),
        source,
    }
}

type Header = (BTreeMap<String, Value>, BTreeMap<String, TensorInfo>);

fn read_header(input: impl Read, length: u64) -> Result<Header, ModelError> {
    let mut r = Bounded::new(input, length);
    if &r.array::<4>()? != b"GGUF" {
        return Err(malformed("no GGUF magic"));
    }
    let version = r.u32()?;
    if !(2..=3).contains(&version) {
        return Err(ModelError::Unsupported(format!("GGUF version {version}")));
    }
    let (tensor_count, value_count) = (r.u64()?, r.u64()?);
    if tensor_count > MAX_ENTRIES || value_count > MAX_ENTRIES {
        return Err(malformed("too many header entries"));
    }
    let mut meta = BTreeMap::new();
    for _ in 0..value_count {
        let key = r.string(65_535)?;
        let kind = r.u32()?;
        let value = read_value(&mut r, kind)?;
        if meta.insert(key.clone(), value).is_some() {
            return Err(malformed(format!("{key} stands twice")));
        }
    }
    let mut raw = Vec::new();
    for _ in 0..tensor_count {
        raw.push(read_tensor_info(&mut r)?);
    }
    let alignment = match meta.get("general.alignment") {
        None => 32,
        Some(Value::Int(a)) if (1..=1 << 20).contains(a) && (*a as u64).is_power_of_two() => {
            *a as u64
        }
        Some(_) => return Err(malformed("bad alignment")),
    };
    let data_start = r.position().next_multiple_of(alignment);
    let mut tensors = BTreeMap::new();
    for (name, mut info) in raw {
        if !info.offset.is_multiple_of(alignment) {
            return Err(malformed(format!("tensor {name} is not aligned")));
        }
        let end = info.offset.checked_add(data_start).and_then(|start| {
            info.offset = start;
            start.checked_add(info.bytes)
        });
        if end.is_none_or(|end| end > length) {
            return Err(malformed(format!(
                "tensor {name} reaches past the end of the file"
            )));
        }
        if tensors.insert(name.clone(), info).is_some() {
            return Err(malformed(format!("tensor {name} stands twice")));
        }
    }
    Ok((meta, tensors))
}

fn read_tensor_info<R: Read>(r: &mut Bounded<R>) -> Result<(String, TensorInfo), ModelError> {
    let name = r.string(4096)?;
    let dims = r.u32()?;
    if !(1..=4).contains(&dims) {
        return Err(malformed(format!("tensor {name} has {dims} dimensions")));
    }
    let mut shape = Vec::new();
    let mut count = 1usize;
    for _ in 0..dims {
        let n = usize::try_from(r.u64()?).ok().filter(|n| *n > 0);
        let n = n.ok_or_else(|| malformed(format!("tensor {name} has a bad dimension")))?;
        count = count
            .checked_mul(n)
            .filter(|c| *c < 1 << 40)
            .ok_or_else(|| malformed(format!("tensor {name} is too large")))?;
        shape.push(n);
    }
    let kind = TensorType::from_ggml(r.u32()?)?;
    let offset = r.u64()?;
    let bytes = kind.byte_len(count, shape[0])?;
    shape.reverse(); // the file puts the fastest dimension first
    Ok((
        name,
        TensorInfo {
            shape,
            kind,
            offset,
            bytes,
        },
    ))
}

fn read_value<R: Read>(r: &mut Bounded<R>, kind: u32) -> Result<Value, ModelError> {
    Ok(match kind {
        0..=5 | 10 | 11 => Value::Int(read_int(r, kind)?),
        6 | 12 => Value::Float(read_float(r, kind)?),
        7 => Value::Bool(r.array::<1>()?[0] != 0),
        8 => Value::Text(r.string(MAX_STRING)?),
        9 => read_array(r)?,
        other => return Err(malformed(format!("metadata type {other}"))),
    })
}

fn read_int<R: Read>(r: &mut Bounded<R>, kind: u32) -> Result<i64, ModelError> {
    Ok(match kind {
        0 => i64::from(r.array::<1>()?[0]),
        1 => i64::from(r.array::<1>()?[0] as i8),
        2 => i64::from(u16::from_le_bytes(r.array()?)),
        3 => i64::from(i16::from_le_bytes(r.array()?)),
        4 => i64::from(r.u32()?),
        5 => i64::from(r.u32()? as i32),
        10 => i64::try_from(r.u64()?).map_err(|_| malformed("an integer is too large"))?,
        _ => r.u64()? as i64,
    })
}

fn read_float<R: Read>(r: &mut Bounded<R>, kind: u32) -> Result<f64, ModelError> {
    Ok(if kind == 6 {
        f64::from(f32::from_bits(r.u32()?))
    } else {
        f64::from_bits(r.u64()?)
    })
}

fn read_array<R: Read>(r: &mut Bounded<R>) -> Result<Value, ModelError> {
    let (kind, count) = (r.u32()?, r.u64()?);
    if count > MAX_ELEMENTS || count > r.left() {
        return Err(malformed(format!("an array claims {count} elements")));
    }
    // Grown as elements arrive: a lying count allocates nothing.
    match kind {
        0..=5 | 10 | 11 => (0..count)
            .map(|_| read_int(r, kind))
            .collect::<Result<_, _>>()
            .map(Value::Ints),
        7 => (0..count)
            .map(|_| Ok(i64::from(r.array::<1>()?[0])))
            .collect::<Result<_, _>>()
            .map(Value::Ints),
        6 | 12 => (0..count)
            .map(|_| read_float(r, kind))
            .collect::<Result<_, _>>()
            .map(Value::Floats),
        8 => (0..count)
            .map(|_| r.string(MAX_STRING))
            .collect::<Result<_, _>>()
            .map(Value::Texts),
        other => Err(malformed(format!("array of metadata type {other}"))),
    }
}
