//! Messages of the OpenTelemetry protocol that traces need.
//!
//! <https://github.com/open-telemetry/opentelemetry-proto>: `trace/v1/trace.proto`,
//! `collector/trace/v1/trace_service.proto` and their dependencies. Field numbers are those of the
//! protocol; fields that are never sent are omitted.

use bytes::Bytes;
use prost::{Message, Oneof};

/// `ExportTraceServiceRequest`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ExportRequest {
    /// The spans of one resource, which is this server.
    #[prost(message, repeated, tag = "1")]
    pub(super) resource_spans: Vec<ResourceSpans>,
}

/// `ResourceSpans`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ResourceSpans {
    /// The resource of the spans.
    #[prost(message, optional, tag = "1")]
    pub(super) resource: Option<Resource>,
    /// Messages of the type [`ScopeSpans`], already encoded: the wire format is the same.
    #[prost(bytes = "bytes", repeated, tag = "2")]
    pub(super) scope_spans: Vec<Bytes>,
}

/// `Resource`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Resource {
    /// The attributes of the resource.
    #[prost(message, repeated, tag = "1")]
    pub(super) attributes: Vec<KeyValue>,
}

/// `ScopeSpans`. Two concatenated messages are a single one with the spans of both.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ScopeSpans {
    /// The library that has created the spans.
    #[prost(message, optional, tag = "1")]
    pub(super) scope: Option<InstrumentationScope>,
    /// The spans.
    #[prost(message, repeated, tag = "2")]
    pub(super) spans: Vec<Span>,
}

/// `InstrumentationScope`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct InstrumentationScope {
    /// The name of the library.
    #[prost(string, tag = "1")]
    pub(super) name: String,
    /// The version of the library.
    #[prost(string, tag = "2")]
    pub(super) version: String,
}

/// `Span`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Span {
    /// The trace ID, 16 bytes.
    #[prost(bytes = "vec", tag = "1")]
    pub(super) trace_id: Vec<u8>,
    /// The span ID, 8 bytes.
    #[prost(bytes = "vec", tag = "2")]
    pub(super) span_id: Vec<u8>,
    /// The received value of `tracestate`.
    #[prost(string, tag = "3")]
    pub(super) trace_state: String,
    /// The span ID of the parent, 8 bytes; empty for the root of a trace.
    #[prost(bytes = "vec", tag = "4")]
    pub(super) parent_span_id: Vec<u8>,
    /// The name of the operation.
    #[prost(string, tag = "5")]
    pub(super) name: String,
    /// [`SPAN_KIND_SERVER`].
    #[prost(int32, tag = "6")]
    pub(super) kind: i32,
    /// Nanoseconds since 1970.
    #[prost(fixed64, tag = "7")]
    pub(super) start_time_unix_nano: u64,
    /// Nanoseconds since 1970.
    #[prost(fixed64, tag = "8")]
    pub(super) end_time_unix_nano: u64,
    /// The attributes of the span.
    #[prost(message, repeated, tag = "9")]
    pub(super) attributes: Vec<KeyValue>,
    /// The status of the operation.
    #[prost(message, optional, tag = "15")]
    pub(super) status: Option<Status>,
}

/// The span is of a request from another process.
pub(super) const SPAN_KIND_SERVER: i32 = 2;

/// `Status`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Status {
    /// [`STATUS_CODE_ERROR`], or 0 if unset.
    #[prost(int32, tag = "3")]
    pub(super) code: i32,
}

/// The operation has failed.
pub(super) const STATUS_CODE_ERROR: i32 = 2;

/// `KeyValue`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct KeyValue {
    /// The name of the attribute.
    #[prost(string, tag = "1")]
    pub(super) key: String,
    /// The value of the attribute.
    #[prost(message, optional, tag = "2")]
    pub(super) value: Option<AnyValue>,
}

/// `AnyValue`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct AnyValue {
    /// The value, whatever its type.
    #[prost(oneof = "Value", tags = "1, 3, 5")]
    pub(super) value: Option<Value>,
}

/// The types of values that are used here.
#[derive(Clone, PartialEq, Oneof)]
pub(super) enum Value {
    /// A text.
    #[prost(string, tag = "1")]
    Text(String),
    /// A number.
    #[prost(int64, tag = "3")]
    Number(i64),
    /// Several values.
    #[prost(message, tag = "5")]
    Array(ArrayValue),
}

/// `ArrayValue`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ArrayValue {
    /// The values, in order.
    #[prost(message, repeated, tag = "1")]
    pub(super) values: Vec<AnyValue>,
}

/// `ExportTraceServiceResponse`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ExportResponse {
    /// The collector's report of rejected spans, or a warning.
    #[prost(message, optional, tag = "1")]
    pub(super) partial_success: Option<PartialSuccess>,
}

/// `ExportTracePartialSuccess`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct PartialSuccess {
    /// The number of rejected spans.
    #[prost(int64, tag = "1")]
    pub(super) rejected_spans: i64,
    /// The reason, or a warning if all spans were accepted.
    #[prost(string, tag = "2")]
    pub(super) error_message: String,
}

impl KeyValue {
    /// A text attribute. Invalid UTF-8 is replaced, since it would make the whole message invalid,
    /// and its spans would be lost.
    pub(super) fn text(key: impl Into<String>, value: &[u8]) -> KeyValue {
        KeyValue::of(key, Value::text(value))
    }

    /// A number attribute.
    pub(super) fn number(key: &str, value: u64) -> KeyValue {
        KeyValue::of(key, Value::Number(i64::try_from(value).unwrap_or(i64::MAX)))
    }

    /// An attribute that is a list with one text.
    pub(super) fn list(key: impl Into<String>, value: &[u8]) -> KeyValue {
        let values = vec![AnyValue {
            value: Some(Value::text(value)),
        }];
        KeyValue::of(key, Value::Array(ArrayValue { values }))
    }

    fn of(key: impl Into<String>, value: Value) -> KeyValue {
        KeyValue {
            key: key.into(),
            value: Some(AnyValue { value: Some(value) }),
        }
    }
}

impl Value {
    fn text(value: &[u8]) -> Value {
        Value::Text(String::from_utf8_lossy(value).into_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The encoding of the same messages by Python's opentelemetry-proto 1.24.0.
    #[test]
    fn messages_are_those_of_the_protocol() {
        let span = Span {
            trace_id: vec![1; 16],
            span_id: vec![2; 8],
            trace_state: "a=b".to_owned(),
            parent_span_id: Vec::new(),
            name: "/x".to_owned(),
            kind: SPAN_KIND_SERVER,
            start_time_unix_nano: 1,
            end_time_unix_nano: 0x0102_0304_0506_0708,
            attributes: vec![
                KeyValue::text("t", b"v\xff"),
                KeyValue::number("n", 300),
                KeyValue::list("l", b"1"),
            ],
            status: Some(Status {
                code: STATUS_CODE_ERROR,
            }),
        };
        let spans = ScopeSpans {
            scope: None,
            spans: vec![span],
        };
        let expected = "12620a1001010101010101010101010101010101120802020202020202021a03613d622a022f\
             7830023901000000000000004108070605040302014a0b0a017412060a0476efbfbd4a080a01\
             6e120318ac024a0c0a016c12072a050a030a01317a021802";
        let hex: String = spans
            .encode_to_vec()
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        assert_eq!(hex, expected);
    }

    #[test]
    fn encoded_scopes_are_joined() {
        let scope = |spans: Vec<Span>, name: Option<&str>| ScopeSpans {
            scope: name.map(|name| InstrumentationScope {
                name: name.to_owned(),
                version: String::new(),
            }),
            spans,
        };
        let span = |name: &str| Span {
            name: name.to_owned(),
            ..Span::default()
        };
        let mut joined = scope(Vec::new(), Some("s")).encode_to_vec();
        for name in ["a", "b"] {
            scope(vec![span(name)], None).encode(&mut joined).unwrap();
        }
        let whole = ScopeSpans::decode(&*joined).unwrap();
        assert_eq!(whole, scope(vec![span("a"), span("b")], Some("s")));
    }
}
