//! JSON read so that nothing in it is passed over in silence.
//!
//! A layer between the JSON and the type that is read from it. It sees what the type asks for: of an object
//! the names of its fields, so that another name is an error which tells the nearest one; of an integer that
//! it is one, so that `30000.0` is read too. It also knows where it is, for messages.

use std::cell::RefCell;
use std::fmt;

use sandkasten_types::strict::{unknown_field, whole};
use serde::de::{
    Deserialize, DeserializeSeed, Deserializer, Error, IntoDeserializer as _, MapAccess, SeqAccess,
    Visitor,
};

/// One step from an object or array to what is in it.
#[derive(Debug, Clone)]
enum Step {
    Field(&'static str),
    /// A name in an object that may have any.
    Name(String),
    Item(usize),
}

/// The way from the top to where the reading is; where it has failed, to the fault.
#[derive(Debug, Default)]
pub(crate) struct Way(RefCell<Vec<Step>>);

impl Way {
    fn enter(&self, step: Step) {
        self.0.borrow_mut().push(step);
    }

    fn leave(&self) {
        self.0.borrow_mut().pop();
    }

    /// Reads `T` and leaves the way as it was. Where that fails the way stays at the fault.
    pub(crate) fn read<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
        &self,
        deserializer: D,
    ) -> Result<T, D::Error> {
        T::deserialize(Strict { inner: deserializer, way: self })
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, step) in self.0.borrow().iter().enumerate() {
            let dot = if at == 0 { "" } else { "." };
            match step {
                Step::Field(name) => write!(f, "{dot}{name}")?,
                Step::Name(name) => {
                    let name: String = name.chars().take(80).collect();
                    write!(f, "{dot}{}", name.escape_debug())?;
                }
                Step::Item(at) => write!(f, "[{at}]")?,
            }
        }
        Ok(())
    }
}

/// What serde says, in the words of somebody who sends JSON: no position, no type of Rust.
pub(crate) fn plain(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let place = format!(" at line {} column {}", error.line(), error.column());
    let text = text.strip_suffix(&place).unwrap_or(&text);
    let wrong = ["invalid type: ", "invalid value: ", "invalid length: "];
    let Some(rest) = wrong.iter().find_map(|begin| text.strip_prefix(begin)) else {
        return text.to_owned();
    };
    let Some((found, expected)) = rest.rsplit_once(", expected ") else { return text.to_owned() };
    format!("must be {}, not {}", expected_in_words(expected), found_in_words(found))
}

fn expected_in_words(expected: &str) -> &str {
    match expected {
        "i8" | "i16" | "i32" | "i64" | "u8" | "u16" | "u32" | "u64" | "usize" => "a whole number",
        "f32" | "f64" => "a number",
        "a boolean" => "`true` or `false`",
        "a sequence" => "an array",
        "a map" => "an object",
        other if other.starts_with("struct ") => "an object",
        other => other,
    }
}

fn found_in_words(found: &str) -> String {
    let shown = |text: &str| text.chars().take(80).collect::<String>();
    match found {
        "map" => "an object".into(),
        "sequence" => "an array".into(),
        "unit value" | "null" => "null".into(),
        other => match other.split_once(' ') {
            Some(("string", text)) => format!("the text {}", shown(text)),
            Some(("integer" | "boolean", value)) => shown(value),
            Some(("floating", value)) => shown(value.trim_start_matches("point ")),
            _ => shown(other),
        },
    }
}

/// Whatever is read, with the way to it.
struct Strict<'w, T> {
    inner: T,
    way: &'w Way,
}

impl<'w, T> Strict<'w, T> {
    fn with<U>(&self, inner: U) -> Strict<'w, U> {
        Strict { inner, way: self.way }
    }
}

macro_rules! forward {
    ($($method:ident)*) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
            let Self { inner, way } = self;
            inner.$method(Strict { inner: visitor, way })
        }
    )*};
}

macro_rules! whole_numbers {
    ($($method:ident)*) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
            self.inner.$method(Whole(visitor))
        }
    )*};
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for Strict<'_, D> {
    type Error = D::Error;

    forward! {
        deserialize_any deserialize_bool deserialize_f32 deserialize_f64 deserialize_char
        deserialize_str deserialize_string deserialize_bytes deserialize_byte_buf
        deserialize_option deserialize_unit deserialize_seq deserialize_map
        deserialize_identifier deserialize_ignored_any
    }

    whole_numbers! {
        deserialize_i8 deserialize_i16 deserialize_i32 deserialize_i64
        deserialize_u8 deserialize_u16 deserialize_u32 deserialize_u64
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        let Self { inner, way } = self;
        inner.deserialize_unit_struct(name, Strict { inner: visitor, way })
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        let Self { inner, way } = self;
        inner.deserialize_newtype_struct(name, Strict { inner: visitor, way })
    }

    fn deserialize_tuple<V: Visitor<'de>>(
        self,
        len: usize,
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        let Self { inner, way } = self;
        inner.deserialize_tuple(len, Strict { inner: visitor, way })
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        len: usize,
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        let Self { inner, way } = self;
        inner.deserialize_tuple_struct(name, len, Strict { inner: visitor, way })
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        // Words alone: there are no fields in those that requests have.
        self.inner.deserialize_enum(name, variants, visitor)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        // An array would be taken for the fields in their order.
        self.inner.deserialize_map(Object { visitor, fields, way: self.way })
    }
}

/// Gives what a visitor is given the layer as well.
impl<'de, V: Visitor<'de>> Visitor<'de> for Strict<'_, V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.expecting(f)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<V::Value, E> {
        self.inner.visit_bool(value)
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<V::Value, E> {
        self.inner.visit_i64(value)
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<V::Value, E> {
        self.inner.visit_u64(value)
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<V::Value, E> {
        self.inner.visit_f64(value)
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<V::Value, E> {
        self.inner.visit_str(value)
    }

    fn visit_borrowed_str<E: Error>(self, value: &'de str) -> Result<V::Value, E> {
        self.inner.visit_borrowed_str(value)
    }

    fn visit_string<E: Error>(self, value: String) -> Result<V::Value, E> {
        self.inner.visit_string(value)
    }

    fn visit_none<E: Error>(self) -> Result<V::Value, E> {
        self.inner.visit_none()
    }

    fn visit_some<D: Deserializer<'de>>(self, inner: D) -> Result<V::Value, D::Error> {
        let inner = self.with(inner);
        self.inner.visit_some(inner)
    }

    fn visit_unit<E: Error>(self) -> Result<V::Value, E> {
        self.inner.visit_unit()
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, inner: D) -> Result<V::Value, D::Error> {
        let inner = self.with(inner);
        self.inner.visit_newtype_struct(inner)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, items: A) -> Result<V::Value, A::Error> {
        self.inner.visit_seq(Items { items, at: 0, way: self.way })
    }

    fn visit_map<A: MapAccess<'de>>(self, members: A) -> Result<V::Value, A::Error> {
        self.inner.visit_map(Members { members, fields: None, next: None, way: self.way })
    }
}

/// A visitor of an integer, which may be written as a number with a fraction of nothing.
struct Whole<V>(V);

impl<'de, V: Visitor<'de>> Visitor<'de> for Whole<V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.expecting(f)
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<V::Value, E> {
        self.0.visit_i64(value)
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<V::Value, E> {
        self.0.visit_u64(value)
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<V::Value, E> {
        match whole(value) {
            Some(number) if number >= 0 => self.0.visit_u64(number.unsigned_abs()),
            Some(number) => self.0.visit_i64(number),
            None => self.0.visit_f64(value),
        }
    }
}

/// A visitor of an object whose fields are known.
struct Object<'w, V> {
    visitor: V,
    fields: &'static [&'static str],
    way: &'w Way,
}

impl<'de, V: Visitor<'de>> Visitor<'de> for Object<'_, V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, members: A) -> Result<V::Value, A::Error> {
        let Self { visitor, fields, way } = self;
        visitor.visit_map(Members { members, fields: Some(fields), next: None, way })
    }
}

struct Members<'w, A> {
    members: A,
    /// `None`: any name is one.
    fields: Option<&'static [&'static str]>,
    /// The way to the value that comes next.
    next: Option<Step>,
    way: &'w Way,
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for Members<'_, A> {
    type Error = A::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, A::Error> {
        let Some(name) = self.members.next_key::<String>()? else { return Ok(None) };
        let step = match self.fields {
            None => Step::Name(name.clone()),
            Some(fields) => match fields.iter().find(|known| **known == name) {
                Some(known) => Step::Field(known),
                None => return Err(A::Error::custom(unknown_field(&name, fields))),
            },
        };
        self.next = Some(step);
        seed.deserialize(name.into_deserializer()).map(Some)
    }

    fn next_value_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<T::Value, A::Error> {
        let way = self.way;
        way.enter(self.next.take().unwrap_or(Step::Field("")));
        let value = self.members.next_value_seed(Strict { inner: seed, way })?;
        way.leave();
        Ok(value)
    }
}

struct Items<'w, A> {
    items: A,
    at: usize,
    way: &'w Way,
}

impl<'de, A: SeqAccess<'de>> SeqAccess<'de> for Items<'_, A> {
    type Error = A::Error;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, A::Error> {
        let way = self.way;
        way.enter(Step::Item(self.at));
        self.at += 1;
        let item = self.items.next_element_seed(Strict { inner: seed, way })?;
        way.leave();
        Ok(item)
    }
}

impl<'de, S: DeserializeSeed<'de>> DeserializeSeed<'de> for Strict<'_, S> {
    type Value = S::Value;

    fn deserialize<D: Deserializer<'de>>(self, inner: D) -> Result<S::Value, D::Error> {
        let inner = self.with(inner);
        self.inner.deserialize(inner)
    }
}
