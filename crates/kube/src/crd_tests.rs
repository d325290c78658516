use serde_json::{Value, json};

use super::*;

fn schema(crd: &CustomResourceDefinition) -> Value {
    let crd = serde_json::to_value(crd).unwrap();
    crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"].clone()
}

#[test]
fn references_to_pools_have_the_defaults_of_the_gateway_api() {
    for crd in crds() {
        let pool = schema(&crd)["spec"]["properties"]["poolRef"].clone();
        assert_eq!(pool["properties"]["group"]["default"], POOL_GROUP);
        assert_eq!(pool["properties"]["kind"]["default"], "InferencePool");
        assert_eq!(pool["required"], json!(["name"]));
    }
}

#[test]
fn priorities_and_weights_are_bounded() {
    let priority = schema(&InferenceObjective::crd())["spec"]["properties"]["priority"].clone();
    assert_eq!((&priority["type"], &priority["format"]), (&json!("integer"), &json!("int32")));
    let rule = schema(&InferenceModelRewrite::crd())["spec"]["properties"]["rules"]["items"]["properties"].clone();
    let weight = rule["targets"]["items"]["properties"]["weight"].clone();
    assert_eq!((weight["minimum"].as_f64(), weight["maximum"].as_f64()), (Some(1.0), Some(1e6)));
    let model = rule["matches"]["items"]["properties"]["model"]["properties"].clone();
    assert_eq!((&model["type"]["enum"], &model["type"]["default"]), (&json!(["Exact"]), &json!("Exact")));
}

#[test]
fn models_have_names_that_are_not_too_long() {
    let rule = schema(&InferenceModelRewrite::crd())["spec"]["properties"]["rules"]["items"]["properties"].clone();
    let matched = &rule["matches"]["items"]["properties"]["model"]["properties"]["value"];
    for name in [matched, &rule["targets"]["items"]["properties"]["modelRewrite"]] {
        assert_eq!((&name["minLength"], &name["maxLength"]), (&json!(1), &json!(MAX_MODEL_NAME)), "{name}");
    }
}

#[test]
fn the_status_is_a_subresource_with_conditions_by_type() {
    for crd in crds() {
        let version = serde_json::to_value(&crd.spec.versions[0]).unwrap();
        assert_eq!(version["subresources"]["status"], json!({}));
        let conditions = schema(&crd)["status"]["properties"]["conditions"].clone();
        assert_eq!(conditions["x-kubernetes-list-map-keys"], json!(["type"]));
        assert_eq!(conditions["default"][0]["status"], "Unknown");
    }
}

#[test]
fn an_objective_need_have_no_spec_and_a_rewrite_must() {
    let required = |crd: &CustomResourceDefinition| {
        serde_json::to_value(crd).unwrap()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["required"].clone()
    };
    let required: Vec<Value> = crds().iter().map(required).collect();
    assert_eq!(required, [json!(["spec"]), Value::Null]);
}

#[test]
fn the_columns_of_kubectl_show_whether_an_object_counts_and_why_not() {
    for crd in crds() {
        let version = serde_json::to_value(&crd.spec.versions[0]).unwrap();
        let columns = version["additionalPrinterColumns"].as_array().unwrap();
        for (name, field) in [("Accepted", "status"), ("Reason", "reason")] {
            let column = columns.iter().find(|column| column["name"] == name).unwrap();
            assert_eq!(column["jsonPath"], format!(r#".status.conditions[?(@.type=="Accepted")].{field}"#));
        }
    }
}

#[test]
fn an_objective_may_leave_out_all_but_the_name_of_its_pool() {
    let spec: InferenceObjectiveSpec = serde_json::from_value(json!({"poolRef": {"name": "chat"}})).unwrap();
    assert_eq!((spec.priority, spec.pool_ref.group.as_str()), (None, POOL_GROUP));
}
