use super::Resolver;
use crate::diagnostics::Remark;
use crate::document::{Document, Located};
use crate::quantity::ByteSize;
use crate::raw::{RawModelRewrite, RawObjective, RawSluice};
use crate::settings::{ModelRewrite, Objective, Settings};

impl Resolver<'_, '_> {
    /// The section `sluice`, with the checks that need more than one field.
    pub(super) fn settings(&mut self, raw: RawSluice) -> Settings {
        let RawSluice {
            objectives,
            model_rewrites,
            default_objective,
            unknown_objective,
            trust,
            header_only,
            bodies,
            dry_run,
            queue,
            eviction,
            refusals,
            limits,
            reload,
            drain,
            metrics,
        } = raw;
        if limits.max_request_body == ByteSize(0)
            && let Some(node) = self.document.descend(Document::ROOT, &["sluice", "limits", "maxRequestBody"])
        {
            self.error(node, Remark::new("a limit of 0 would refuse every request").hint("write a size such as 64Mi"));
        }
        Settings {
            objectives: self.objectives(objectives),
            model_rewrites: model_rewrites.into_iter().map(|rewrite| self.model_rewrite(rewrite)).collect(),
            default_objective: Some(default_objective).filter(|name| !name.is_empty()),
            unknown_objective,
            trust,
            header_only,
            bodies,
            dry_run,
            queue,
            eviction,
            refusals,
            limits,
            reload,
            drain,
            metrics,
        }
    }

    fn objectives(&mut self, raw: Vec<Located<RawObjective>>) -> Vec<Objective> {
        let mut objectives: Vec<Objective> = Vec::new();
        for Located { value: RawObjective { name, priority }, node } in raw {
            let Some(name) = self.required(name.as_ref(), node, "name") else { continue };
            if objectives.iter().any(|earlier| earlier.name == name.value) {
                self.error(name.node, format!("there is an objective {:?} already", name.value));
            }
            objectives.push(Objective { name: name.value.clone(), priority });
        }
        objectives
    }

    fn model_rewrite(&mut self, raw: RawModelRewrite) -> ModelRewrite {
        let RawModelRewrite { matches, targets } = raw;
        let mut models = Vec::new();
        for pattern in matches {
            let Some(model) = pattern.value.model else {
                if self.document.child(pattern.node, "model").is_none() {
                    self.missing(pattern.node, "model");
                }
                continue;
            };
            if let Some(value) = self.required(model.value.value.as_ref(), model.node, "value") {
                models.push(value.value.clone());
            }
        }
        ModelRewrite { models, targets }
    }
}
