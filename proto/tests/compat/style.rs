//! The rules of buf's STANDARD category that apply here.

use std::collections::BTreeMap;

use prost_types::{DescriptorProto, EnumDescriptorProto, FileDescriptorSet};

fn is_lower_snake(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_lowercase())
        && !name.ends_with('_')
        && !name.contains("__")
        && name
            .chars()
            .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
}

fn is_pascal(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_uppercase())
        && name.chars().all(|c| c.is_ascii_alphanumeric())
}

fn upper_snake(pascal: &str) -> String {
    let mut text = String::new();
    for (i, c) in pascal.chars().enumerate() {
        if c.is_ascii_uppercase() && i > 0 {
            text.push('_');
        }
        text.push(c.to_ascii_uppercase());
    }
    text
}

/// Every place where the files depart from the rules.
pub fn style(set: &FileDescriptorSet) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut uses: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for file in &set.file {
        let name = file.name();
        if file.syntax() != "proto3" {
            wrong.push(format!("{name}: not proto3"));
        }
        if file.package() != "cipherhop.v1" {
            wrong.push(format!(
                "{name}: the package has no version or is another one"
            ));
        }
        let stem = name
            .strip_prefix("cipherhop/v1/")
            .and_then(|n| n.strip_suffix(".proto"));
        if !stem.is_some_and(is_lower_snake) {
            wrong.push(format!("{name}: not cipherhop/v1/lower_snake.proto"));
        }
        if !file.public_dependency.is_empty() || !file.weak_dependency.is_empty() {
            wrong.push(format!("{name}: public or weak import"));
        }
        for message in &file.message_type {
            message_style(message, &mut wrong);
        }
        for of in &file.enum_type {
            enum_style(of, &mut wrong);
        }
        for service in &file.service {
            let of = service.name();
            if !is_pascal(of) || !of.ends_with("Service") {
                wrong.push(format!(
                    "service {of}: not PascalCase with the suffix Service"
                ));
            }
            for method in &service.method {
                let call = method.name();
                if !is_pascal(call) {
                    wrong.push(format!("{of}.{call}: not PascalCase"));
                }
                for (kind, suffix) in [
                    (method.input_type(), "Request"),
                    (method.output_type(), "Response"),
                ] {
                    if kind != format!(".cipherhop.v1.{call}{suffix}") {
                        wrong.push(format!("{of}.{call}: {kind} is not {call}{suffix}"));
                    }
                    uses.entry(kind.to_owned())
                        .or_default()
                        .push(format!("{of}.{call}"));
                }
            }
        }
    }
    for (kind, calls) in uses {
        if calls.len() > 1 {
            wrong.push(format!("{kind} is shared by {}", calls.join(" and ")));
        }
    }
    wrong
}

fn message_style(message: &DescriptorProto, wrong: &mut Vec<String>) {
    let name = message.name();
    let map_entry = message.options.as_ref().is_some_and(|o| o.map_entry());
    if !is_pascal(name) && !map_entry {
        wrong.push(format!("message {name}: not PascalCase"));
    }
    for field in &message.field {
        if !is_lower_snake(field.name()) {
            wrong.push(format!("{name}.{}: not lower_snake_case", field.name()));
        }
    }
    for oneof in &message.oneof_decl {
        let synthetic = oneof.name().starts_with('_');
        if !synthetic && !is_lower_snake(oneof.name()) {
            wrong.push(format!("{name}.{}: not lower_snake_case", oneof.name()));
        }
    }
    for nested in &message.nested_type {
        message_style(nested, wrong);
    }
    for of in &message.enum_type {
        enum_style(of, wrong);
    }
}

fn enum_style(of: &EnumDescriptorProto, wrong: &mut Vec<String>) {
    let name = of.name();
    if !is_pascal(name) {
        wrong.push(format!("enum {name}: not PascalCase"));
    }
    let prefix = upper_snake(name);
    let mut numbers = BTreeMap::new();
    for value in &of.value {
        if !value.name().starts_with(&format!("{prefix}_")) {
            wrong.push(format!("{name}.{}: not {prefix}_...", value.name()));
        }
        if let Some(other) = numbers.insert(value.number(), value.name()) {
            wrong.push(format!(
                "{name}: {other} and {} are one number",
                value.name()
            ));
        }
    }
    if numbers.get(&0) != Some(&format!("{prefix}_UNSPECIFIED").as_str()) {
        wrong.push(format!("{name}: 0 is not {prefix}_UNSPECIFIED"));
    }
}

mod tests {
    use super::*;

    #[test]
    fn every_rule_can_be_broken() {
        let good = super::super::compiled();
        type Change = fn(&mut FileDescriptorSet);
        let changes: [Change; 8] = [
            |s| s.file[0].package = Some("cipherhop".into()),
            |s| s.file[0].name = Some("cipherhop/v1/Admin.proto".into()),
            |s| s.file[0].message_type[0].name = Some("create_token".into()),
            |s| s.file[0].message_type[0].field[0].name = Some("theRole".into()),
            |s| s.file[0].enum_type[0].value[0].name = Some("TOKEN_ROLE_NONE".into()),
            |s| s.file[0].enum_type[0].value[1].name = Some("INVITE".into()),
            |s| s.file[0].service[0].name = Some("Admin".into()),
            |s| {
                s.file[0].service[0].method[1].input_type =
                    s.file[0].service[0].method[0].input_type.clone()
            },
        ];
        for (i, change) in changes.into_iter().enumerate() {
            let mut set = good.clone();
            change(&mut set);
            assert!(!style(&set).is_empty(), "change {i} went unnoticed");
        }
    }
}
