//! What breaks an older program, field by field.

use std::collections::BTreeMap;

use prost_types::{
    DescriptorProto, EnumDescriptorProto, FieldDescriptorProto, FileDescriptorSet,
    ServiceDescriptorProto,
};

/// Every message and enum by its full name, every service by its name.
struct Contract<'a> {
    messages: BTreeMap<String, &'a DescriptorProto>,
    enums: BTreeMap<String, &'a EnumDescriptorProto>,
    services: BTreeMap<String, &'a ServiceDescriptorProto>,
}

impl<'a> Contract<'a> {
    fn of(set: &'a FileDescriptorSet) -> Contract<'a> {
        let mut contract = Contract {
            messages: BTreeMap::new(),
            enums: BTreeMap::new(),
            services: BTreeMap::new(),
        };
        for file in &set.file {
            for message in &file.message_type {
                contract.add(file.package(), message);
            }
            for of in &file.enum_type {
                let name = format!("{}.{}", file.package(), of.name());
                contract.enums.insert(name, of);
            }
            for service in &file.service {
                let name = format!("{}.{}", file.package(), service.name());
                contract.services.insert(name, service);
            }
        }
        contract
    }

    fn add(&mut self, scope: &str, message: &'a DescriptorProto) {
        let name = format!("{scope}.{}", message.name());
        for nested in &message.nested_type {
            self.add(&name, nested);
        }
        for of in &message.enum_type {
            self.enums.insert(format!("{name}.{}", of.name()), of);
        }
        self.messages.insert(name, message);
    }
}

/// Every way in which `new` breaks a program that was built with `old`.
pub fn breaking(old: &FileDescriptorSet, new: &FileDescriptorSet) -> Vec<String> {
    let (old, new) = (Contract::of(old), Contract::of(new));
    let mut broken = Vec::new();
    for (name, before) in &old.services {
        match new.services.get(name) {
            None => broken.push(format!("service {name} is gone")),
            Some(after) => methods(name, before, after, &mut broken),
        }
    }
    for (name, before) in &old.messages {
        match new.messages.get(name) {
            None => broken.push(format!("message {name} is gone")),
            Some(after) => fields(name, before, after, &mut broken),
        }
    }
    for (name, before) in &old.enums {
        match new.enums.get(name) {
            None => broken.push(format!("enum {name} is gone")),
            Some(after) => values(name, before, after, &mut broken),
        }
    }
    broken
}

fn methods(
    service: &str,
    before: &ServiceDescriptorProto,
    after: &ServiceDescriptorProto,
    broken: &mut Vec<String>,
) {
    for method in &before.method {
        let name = method.name();
        let Some(now) = after.method.iter().find(|m| m.name() == name) else {
            broken.push(format!("{service}.{name} is gone"));
            continue;
        };
        let shape = |m: &prost_types::MethodDescriptorProto| {
            (
                m.input_type().to_owned(),
                m.output_type().to_owned(),
                m.client_streaming(),
                m.server_streaming(),
            )
        };
        if shape(method) != shape(now) {
            broken.push(format!(
                "{service}.{name} has another request, response or streaming"
            ));
        }
    }
}

/// What of a field an older program relies on.
fn shape(message: &DescriptorProto, field: &FieldDescriptorProto) -> impl PartialEq + use<> {
    // A field that is `optional` has a oneof of its own whose name means nothing.
    let optional = field.proto3_optional();
    let oneof = field
        .oneof_index
        .filter(|_| !optional)
        .and_then(|i| message.oneof_decl.get(usize::try_from(i).ok()?))
        .map(|oneof| oneof.name().to_owned());
    (
        field.name().to_owned(),
        field.r#type() as i32,
        field.type_name().to_owned(),
        field.label() as i32,
        optional,
        oneof,
    )
}

fn fields(
    message: &str,
    before: &DescriptorProto,
    after: &DescriptorProto,
    broken: &mut Vec<String>,
) {
    for field in &before.field {
        let (name, number) = (field.name(), field.number());
        match after.field.iter().find(|f| f.number() == number) {
            Some(now) if shape(before, field) == shape(after, now) => {}
            Some(now) => broken.push(format!(
                "{message}: field {number} was {name} and is {} or of another type",
                now.name()
            )),
            None => {
                let reserved = after
                    .reserved_range
                    .iter()
                    .any(|r| (r.start()..r.end()).contains(&number));
                if !reserved || !after.reserved_name.iter().any(|r| r == name) {
                    broken.push(format!(
                        "{message}: {name} = {number} is gone and not reserved by number and name"
                    ));
                }
            }
        }
    }
    for range in &before.reserved_range {
        if !after
            .reserved_range
            .iter()
            .any(|r| r.start() <= range.start() && range.end() <= r.end())
        {
            broken.push(format!(
                "{message}: {} is not reserved any more",
                range.start()
            ));
        }
    }
}

fn values(
    of: &str,
    before: &EnumDescriptorProto,
    after: &EnumDescriptorProto,
    broken: &mut Vec<String>,
) {
    for value in &before.value {
        let (name, number) = (value.name(), value.number());
        match after.value.iter().find(|v| v.number() == number) {
            Some(now) if now.name() == name => {}
            Some(now) => broken.push(format!("{of}: {number} was {name} and is {}", now.name())),
            None => {
                let reserved = after
                    .reserved_range
                    .iter()
                    .any(|r| (r.start()..=r.end()).contains(&number));
                if !reserved || !after.reserved_name.iter().any(|r| r == name) {
                    broken.push(format!(
                        "{of}: {name} = {number} is gone and not reserved by number and name"
                    ));
                }
            }
        }
    }
}

mod tests {
    use prost_types::descriptor_proto::ReservedRange;
    use prost_types::field_descriptor_proto::Type;

    use super::*;

    fn message<'a>(set: &'a mut FileDescriptorSet, name: &str) -> &'a mut DescriptorProto {
        set.file
            .iter_mut()
            .flat_map(|f| &mut f.message_type)
            .find(|m| m.name() == name)
            .unwrap()
    }

    /// What the rules say to a change of today's contract.
    fn told(change: impl FnOnce(&mut FileDescriptorSet)) -> Vec<String> {
        let old = super::super::compiled();
        let mut new = old.clone();
        change(&mut new);
        breaking(&old, &new)
    }

    #[test]
    fn additions_are_free() {
        assert_eq!(told(|_| ()), [""; 0]);
        let added = told(|set| {
            let hello = message(set, "HelloRequest");
            let mut field = hello.field[0].clone();
            (field.name, field.number) = (Some("more".into()), Some(99));
            hello.field.push(field);
        });
        assert_eq!(added, [""; 0]);
    }

    #[test]
    fn a_field_that_changes_or_goes_is_told() {
        let submit = |set: &mut FileDescriptorSet, change: fn(&mut FieldDescriptorProto)| {
            let message = message(set, "SubmitRequest");
            change(
                message
                    .field
                    .iter_mut()
                    .find(|f| f.name() == "epoch")
                    .unwrap(),
            );
        };
        type Change = fn(&mut FieldDescriptorProto);
        let changes: [Change; 4] = [
            |f| f.name = Some("fence".into()),
            |f| f.number = Some(77),
            |f| f.set_type(Type::Uint32),
            |f| f.set_label(prost_types::field_descriptor_proto::Label::Repeated),
        ];
        for change in changes {
            assert_eq!(told(|set| submit(set, change)).len(), 1);
        }
        let gone = |set: &mut FileDescriptorSet| {
            message(set, "SubmitRequest")
                .field
                .retain(|f| f.number() != 2);
        };
        assert_eq!(told(gone).len(), 1);
        let reserved = told(|set| {
            gone(set);
            let message = message(set, "SubmitRequest");
            message.reserved_name.push("epoch".into());
            message.reserved_range.push(ReservedRange {
                start: Some(2),
                end: Some(3),
            });
        });
        assert_eq!(reserved, [""; 0]);
    }

    #[test]
    fn calls_and_enum_values_that_change_or_go_are_told() {
        let service = |set: &mut FileDescriptorSet, change: fn(&mut ServiceDescriptorProto)| {
            let mut services = set.file.iter_mut().flat_map(|f| &mut f.service);
            change(services.find(|s| s.name() == "BlobService").unwrap());
        };
        assert_eq!(told(|s| service(s, |s| drop(s.method.pop()))).len(), 1);
        assert_eq!(
            told(|s| service(s, |s| s.method[0].server_streaming = Some(true))).len(),
            1
        );
        let roles = |set: &mut FileDescriptorSet, change: fn(&mut EnumDescriptorProto)| {
            let mut enums = set.file.iter_mut().flat_map(|f| &mut f.enum_type);
            change(enums.find(|e| e.name() == "BlobRole").unwrap());
        };
        assert_eq!(told(|s| roles(s, |e| e.value.truncate(7))).len(), 1);
        assert_eq!(
            told(|s| roles(s, |e| e.value[1].name = Some("BLOB_ROLE_OTHER".into()))).len(),
            1
        );
        let whole = told(|set| {
            let file = set.file.iter_mut().find(|f| !f.service.is_empty()).unwrap();
            file.service.clear();
        });
        assert_eq!(whole.len(), 1);
    }
}
